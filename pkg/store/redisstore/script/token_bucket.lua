-- A state is {instant of the last charge, deficit in whole hits, rest of the deficit in 1/period
-- hits, requests, capacity}.

-- settled returns the deficit of a state at an instant.
local function settled(s, period, now)
  local whole, part = s[2], s[3]
  if now > s[1] then
    local q, r = muldiv(now - s[1], s[4], period)
    whole, part = whole - q, part - r
    if part < 0 then whole, part = whole - 1, part + period end
    if whole < 0 then whole, part = 0, 0 end
  end
  return whole, part
end

function algorithm.take(s, requests, capacity, period, now, hits, count_rejected)
  local whole, part, held, at, used = 0, 0, now, now, false
  local whole_was, part_was
  if s then
    whole, part = settled(s, period, now)
    if s[1] > now then held = s[1] end
    used = whole > 0 or part > 0
    whole_was, part_was = whole, part
    if used and s[5] ~= capacity then
      local owes = whole > 2 * s[5] or whole == 2 * s[5] and part > 0
      whole = whole + capacity - s[5]
      if whole < 0 then whole, part = 0, 0 end
      if whole >= 2 * capacity and not owes then whole, part = 2 * capacity, 0 end
    end
    if whole > 0 or part > 0 then at = held end
  end

  local allowed, taken = true, false
  if hits < 0 then
    local had = whole > 0 or part > 0
    whole = whole + hits
    if whole < 0 then whole, part = 0, 0 end
    taken = had or at ~= held
  elseif hits == 0 then
    allowed = whole < capacity or whole == capacity and part == 0
  elseif requests == 0 then
    allowed = false
  else
    local after = whole + hits
    if after < capacity or after == capacity and part == 0 then
      whole, taken = after, true
    else
      allowed = false
      local bound = most(count_rejected, capacity)
      if count_rejected and whole < bound then
        if after >= bound then after, part = bound, 0 end
        whole, taken = after, true
      end
    end
  end

  if not used or s[5] <= capacity then
    if used and not taken and s[4] == requests and s[5] == capacity then return s, allowed end
    return (whole > 0 or part > 0) and {at, whole, part, requests, capacity}, allowed
  end
  -- The bucket was larger: the larger capacity goes on to say when the key is idle.
  if requests == 0 then return s, allowed end
  if not taken then
    if s[4] == requests then return s, allowed end
    return {held, whole_was, part_was, requests, s[5]}, allowed
  end
  return {at, whole + s[5] - capacity, part, requests, s[5]}, allowed
end

function algorithm.idle(s, period)
  local q, r = muldiv(period, s[2], s[4])
  return s[1] + q + floor((r + s[3]) / s[4]) + 1
end

if general % 8 >= 4 then
  function algorithm.own(s) return s[4], s[5] end
end

if carrying then algorithm.content, algorithm.bucket = settled, true end

if general % 2 == 1 then
  -- A bucket gains while hits are taken from it. correct does not give back the part of that gain
  -- which a full bucket would not have
  -- gained: all beyond the deficit at that instant.
  function algorithm.correct(s, requests, capacity, period, now, difference, at, was, excess)
    if difference > 0 then return algorithm.take(s, requests, capacity, period, at, difference, excess or true) end
    if not s then return s end
    if s[1] > now then now = s[1] end
    local whole, part = settled(s, period, now)
    local excess, rest = 0, 0
    if now > at then
      excess, rest = muldiv(now - at, s[4], period)
      if was then excess, rest = excess - was[2], rest - was[3] end
      if rest < 0 then excess, rest = excess - 1, rest + period end
      if excess < 0 then excess, rest = 0, 0 end
    end
    whole, part = whole + difference + excess, part + rest
    if part >= period then whole, part = whole + 1, part - period end
    if difference + excess >= 0 then return s end
    if whole < 0 then whole, part = 0, 0 end
    return (whole > 0 or part > 0) and {now, whole, part, s[4], s[5]}
  end
end
