-- A state is {instant of the last charge, microseconds from the refill mark to that instant, rest
-- of these in nanoseconds, deficit, requests}.

-- settled returns the deficit after a refill at an instant, and the first three numbers of a state
-- with that deficit.
local function settled(last, since, since_ns, deficit, rate, period, now)
  if deficit == 0 then return 0, now, 0, 0 end
  if now < last then now = last end
  since = now - last + since
  if rate == 0 then return deficit, now, since, since_ns end
  local refill, rest = muldiv(since, rate, period)
  refill = refill + floor((rest + floor(since_ns * rate / 1000)) / period)
  if refill >= deficit then return 0, now, 0, 0 end
  if refill > 0 then
    local us, left = muldiv(period, refill, rate)
    since, since_ns = since - us, since_ns - floor(left * 1000 / rate)
    if since_ns < 0 then since, since_ns = since - 1, since_ns + 1000 end
  end
  return deficit - refill, now, since, since_ns
end

function algorithm.take(s, requests, _, period, now, hits, count_rejected)
  local deficit, last, since, since_ns = 0, now, 0, 0
  local carried = s
  if s and s[5] == requests then
    last, since, since_ns, deficit = s[1], s[2], s[3], s[4]
  elseif s then
    deficit, last = settled(s[1], s[2], s[3], s[4], s[5], period, now)
    if deficit > 0 and requests == 0 then return s, hits < 0 or hits == 0 and deficit <= 2 * s[5] end -- a ban leaves the state
    local owes = deficit > 2 * s[5]
    if deficit > 0 then deficit = math.max(0, deficit + requests - s[5]) end
    if deficit > 2 * requests and not owes then deficit = 2 * requests end
    carried = deficit > 0 and {last, 0, 0, deficit, requests}
  end
  deficit, last, since, since_ns = settled(last, since, since_ns, deficit, requests, period, now)
  local allowed, taken = true, false
  if hits < 0 then
    deficit, taken = math.max(0, deficit + hits), true
  elseif deficit + hits <= requests then
    deficit, taken = deficit + hits, hits > 0
  elseif hits > 0 and requests == 0 then
    return carried, false
  else
    allowed = false
    if count_rejected and hits > 0 then
      deficit, taken = math.max(deficit, math.min(deficit + hits, most(count_rejected, requests))), true
    end
  end
  if taken then return deficit > 0 and {last, since, since_ns, deficit, requests}, allowed end
  return carried, allowed
end

function algorithm.idle(s, period)
  return s[1] - s[2] + muldiv(period, s[4], s[5]) + 2
end

if general % 8 >= 4 then
  function algorithm.own(s) return s[5] end
end

if carrying then
  algorithm.bucket = true
  function algorithm.content(s, period, now)
    local deficit = settled(s[1], s[2], s[3], s[4], s[5], period, now)
    return deficit, 0
  end
end

if general % 2 == 1 then
  -- correct does not give back tokens that a full bucket would not have gained, as in
  -- token_bucket.lua.
  function algorithm.correct(s, requests, _, period, now, difference, at, was, excess)
    if difference > 0 then return algorithm.take(s, requests, requests, period, at, difference, excess or true) end
    if not s then return s end
    local deficit, last, since, since_ns = settled(s[1], s[2], s[3], s[4], s[5], period, now)
    local back = -difference
    if last > at then
      local gained = muldiv(last - at, s[5], period) + 1 - (was and was[4] or 0)
      if gained > 0 then back = back - gained end
    end
    if back > 0 then deficit = deficit - back end
    return deficit > 0 and {last, since, since_ns, deficit, s[5]}
  end
end
