-- A state is {instant of the last charge, count of its window, count of the window before}.

algorithm.dated = true

-- windows returns the counts of the window of an instant and of the window before, and the instant,
-- held at the last charge.
local function windows(s, period, now)
  local current, previous = 0, 0
  if s then
    if s[1] > now then now = s[1] end
    local gone = floor(now / period) - floor(s[1] / period)
    if gone == 0 then current, previous = s[2], s[3] elseif gone == 1 then previous = s[2] end
  end
  return current, previous, now
end

-- back counts the hits of the window before, as far as they weigh at the instant of the state, in
-- its window.
function algorithm.back(s, period)
  if s[3] == 0 then return end
  local carried, rest = muldiv(period - (s[1] - floor(s[1] / period) * period), s[3], period)
  if rest > 0 then carried = carried + 1 end
  s[2], s[3] = math.min(s[2] + carried, 1099511627775), 0
end

function algorithm.take(s, requests, _, period, now, hits, count_rejected)
  local current, previous
  current, previous, now = windows(s, period, now)
  if hits < 0 then
    current = current + hits
    if current < 0 then current, previous = 0, math.max(0, previous + current) end
    return (current > 0 or previous > 0) and {now, current, previous}, true
  end
  local carried, rest = 0, 0
  if previous > 0 then carried, rest = muldiv(period - (now - floor(now / period) * period), previous, period) end
  local room = requests - current - hits
  if room >= 0 and (carried < room or carried == room and rest == 0) then
    if hits == 0 then return s, true end
    return {now, current + hits, previous}, true
  end
  local used = current + carried
  if rest > 0 then used = used + 1 end
  local bound = most(count_rejected, requests)
  if count_rejected and hits > 0 and used < bound then
    return {now, current + math.min(hits, bound - used), previous}, false
  end
  return s, false
end

function algorithm.idle(s, period)
  return (floor(s[1] / period) + (s[2] > 0 and 2 or 1)) * period
end

if carrying then
  function algorithm.content(s, period, now)
    local current, previous
    current, previous, now = windows(s, period, now)
    if previous == 0 then return current, 0 end
    local carried, rest = muldiv(period - (now - floor(now / period) * period), previous, period)
    return current + carried, rest
  end
end

if general % 2 == 1 or general % 8 >= 4 then
  function algorithm.correct(s, requests, _, period, now, difference, at, _, excess)
    local current, previous
    current, previous, now = windows(s, period, now)
    local gone = floor(now / period) - floor(at / period)
    if gone == 0 then
      if difference > 0 then return algorithm.take(s, requests, requests, period, at, difference, excess or true) end
      current = math.max(0, current + difference)
    elseif gone == 1 then
      local bound = difference > 0 and math.max(previous, most(excess, requests)) or previous
      previous = math.max(0, math.min(previous + difference, bound))
    else
      return s
    end
    return (current > 0 or previous > 0) and {now, current, previous}
  end
end

if general == SEED then
  function algorithm.merge(s, lost, period)
    local current, previous, at = windows(s, period, lost[1])
    local lost_current, lost_previous = windows(lost, period, at)
    if lost_current <= current and lost_previous <= previous then return s end
    return {at, math.max(current, lost_current), math.max(previous, lost_previous)}
  end
end
