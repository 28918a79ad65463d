-- The windows of calendars. ARGV[2] has four boundaries (I7 each) of each calendar that a charge
-- has. With window 0 as the one that the sender saw, the boundaries are the starts of windows -1 to
-- 2. The field for the capacity of a charge is the number of its calendar, from 2.
-- 0: windows of the period since the epoch.
-- FIRST_HIT: a window begins with the first hit of a key, at the whole second, and lasts for the
-- period.
-- If now is not in these windows, the script does nothing, and the sender sends others.
local SECOND, FIRST_HIT = 1000000, 1
local window

if uses_calendars then
  local calendars, elsewhere = {false}, false
  for place = 1, general == SEED and 0 or #(ARGV[2] or ''), 28 do
    local c = {unpack('<I7I7I7I7', ARGV[2], place)}
    calendars[#calendars + 1] = c
    if now < c[1] or now + BACK >= c[4] then elsewhere = true end
  end
  if elsewhere then return pack('<I1I8', 2, now) end

  -- window returns the window of an instant, or nil for an instant before all that are known.
  function window(calendar, period, at)
    if calendar <= FIRST_HIT then
      local start = at - at % (calendar == 0 and period or SECOND)
      return start, start + period
    end
    local c = calendars[calendar]
    for i = 3, 1, -1 do
      if at >= c[i] then return c[i], c[i + 1] end
    end
  end
end
