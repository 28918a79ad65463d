-- A state is {start of the window of the last charge, its count, its end}.

algorithm.dated, algorithm.calendar = true, true

-- current returns the window of now, or of the last charge if that began later, and the count.
local function current(s, calendar, period, now)
  if s and s[1] > now then now = s[1] end
  if s and now < s[3] then return s[1], s[3], s[2] end
  local start, stop = window(calendar, period, now)
  return start, stop, 0
end

function algorithm.take(s, requests, calendar, period, now, hits, count_rejected)
  local start, stop, count = current(s, calendar, period, now)
  if hits == 0 then return s, count <= requests end
  if hits < 0 and count == 0 then return s, true end
  local fits = hits < 0 or count + hits <= requests
  if not fits and not count_rejected then return s, false end
  count = count + hits
  if count >= EXACT then count = EXACT - 1 end
  return count > 0 and {start, count, stop}, fits
end

function algorithm.idle(s) return s[3] end

function algorithm.rewind(s, period, calendar)
  s[1], s[3] = window(calendar, period, now)
end

if carrying then
  function algorithm.content(s, period, now, calendar)
    local _, _, count = current(s, calendar, period, now)
    return count, 0
  end
end

if general % 2 == 1 or general % 8 >= 4 then
  function algorithm.correct(s, _, calendar, period, now, difference, at)
    if s and at < s[3] then
      if at < s[1] or now >= s[3] then return s end
      return (algorithm.take(s, EXACT, calendar, period, now, difference, true))
    end
    local _, stop = window(calendar, period, at)
    if not stop or now >= stop then return s end
    return (algorithm.take(s, EXACT, calendar, period, at, difference, true))
  end
end

if general == SEED then
  function algorithm.merge(s, lost)
    return (lost[1] > s[1] or lost[1] == s[1] and lost[2] > s[2]) and lost or s
  end
end
