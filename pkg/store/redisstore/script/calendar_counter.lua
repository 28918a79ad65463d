-- A state is {start, count, count before, length, length before}. The first window is the one of
-- the last charge, and lengths are in seconds. The last number is 0 unless the window before ends
-- at the start.

algorithm.dated, algorithm.calendar = true, true

local function seconds(start, stop) return math.ceil((stop - start) / SECOND) end

function algorithm.idle(s)
  return s[1] + (s[2] > 0 and 2 * s[4] or math.min(s[4], s[5])) * SECOND
end

-- rolled returns the state as now finds it, in numbers that begin with now, held at the start.
local function rolled(s, calendar, period, now)
  if not s or algorithm.idle(s) <= now then
    local start, stop = window(calendar, period, now)
    return now, start, 0, 0, seconds(start, stop), 0
  end
  local start, current, previous, length, before = spread(s, 1, 5)
  if start > now then now = start end
  local stop = start + length * SECOND
  if now >= stop then
    local from, next = window(calendar, period, now)
    if calendar == FIRST_HIT and now - stop < math.min(period, length * SECOND) then from, next = stop, stop + period end
    previous, before = current, length
    if from > stop then previous, before = 0, 0 end
    start, current = math.max(from, stop), 0
    length = seconds(start, next)
  end
  return now, start, current, previous, length, before
end

-- carried returns how much the window before still counts, and the rest in 1/before hits.
local function carried(now, start, previous, before)
  local left = before * SECOND - (now - start)
  if previous == 0 or left <= 0 then return 0, 0 end
  return muldiv(left, previous, before * SECOND)
end

local function kept(start, current, previous, length, before)
  return (current > 0 or previous > 0) and {start, current, previous, length, before}
end

function algorithm.take(s, requests, calendar, period, now, hits, count_rejected)
  local start, current, previous, length, before
  now, start, current, previous, length, before = rolled(s, calendar, period, now)
  if hits < 0 then
    current = current + hits
    if current < 0 then current, previous = 0, math.max(0, previous + current) end
    return kept(start, current, previous, length, before), true
  end
  local more, rest = carried(now, start, previous, before)
  local room = requests - current - hits
  if room >= 0 and (more < room or more == room and rest == 0) then
    if hits == 0 then return s, true end
    return kept(start, current + hits, previous, length, before), true
  end
  local used = current + more
  if rest > 0 then used = used + 1 end
  local bound = most(count_rejected, requests)
  if count_rejected and hits > 0 and used < bound then
    return kept(start, current + math.min(hits, bound - used), previous, length, before), false
  end
  return s, false
end

function algorithm.rewind(s, period, calendar)
  local start, stop = window(calendar, period, now)
  s[1], s[2], s[3], s[4], s[5] = start, math.min(s[2] + s[3], 17179869183), 0, seconds(start, stop), 0
end

if carrying then
  function algorithm.content(s, period, now, calendar)
    local start, current, previous, before, _
    now, start, current, previous, _, before = rolled(s, calendar, period, now)
    local more, rest = carried(now, start, previous, before)
    return rest > 0 and current + more + 1 or current + more, 0
  end
end

if general % 2 == 1 or general % 8 >= 4 then
  function algorithm.correct(s, requests, calendar, period, now, difference, at, _, excess)
    if not s and calendar == FIRST_HIT then
      return difference > 0 and (algorithm.take(s, requests, calendar, period, at, difference, excess or true))
    end
    local start, current, previous, length, before
    now, start, current, previous, length, before = rolled(s, calendar, period, now)
    if before == 0 and at < start and calendar ~= FIRST_HIT then -- no hit of the window before is known
      local from, stop = window(calendar, period, at)
      if stop == start then before = seconds(from, stop) end
    end
    if at >= start then
      if difference > 0 then return (algorithm.take(s, requests, calendar, period, at, difference, excess or true)) end
      current = math.max(0, current + difference)
    elseif start - at <= before * SECOND then
      local bound = difference > 0 and math.max(previous, most(excess, requests)) or previous
      previous = math.max(0, math.min(previous + difference, bound))
    else
      return s
    end
    return kept(start, current, previous, length, before)
  end
end

if general == SEED then
  function algorithm.merge(s, lost)
    if lost[1] < s[1] then return s end
    local current, previous = 0, s[2]
    if lost[1] == s[1] then
      current, previous = s[2], s[3]
    elseif s[1] + s[4] * SECOND ~= lost[1] then
      previous = 0
    end
    if lost[1] == s[1] and lost[2] <= current and lost[3] <= previous then return s end
    return {lost[1], math.max(current, lost[2]), math.max(previous, lost[3]), lost[4], lost[5] > 0 and lost[5] or s[4]}
  end
end
