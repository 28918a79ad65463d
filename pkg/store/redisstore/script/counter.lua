-- A counter is a fixed window as envoyproxy/ratelimit keeps it: a decimal number under a key that
-- names the window. A state is {count, milliseconds to live from the last charge on}; nothing was
-- charged yet if the latter is 0. In a window of a calendar the period is the rest of the window,
-- or with a holder its length.
local MAX = 999999999999999

function algorithm.read(raw)
  if #raw > 15 or not raw:find('^%d+$') then error('a value that is not a count') end
  return {tonumber(raw), 0}
end

function algorithm.write(s) return string.format('%.0f', s[1]) end

algorithm.windows = true

function algorithm.take(s, requests, jitter, period, _, hits, count_rejected)
  local count, alive = 0, math.ceil(period / 1000) + jitter * 1000
  if s then
    count = s[1]
    if s[2] > alive then alive = s[2] end
  end
  local fits = hits <= 0 or count + hits <= requests
  if hits == 0 then return s, count <= requests end
  if not fits and not count_rejected then return s, false end
  count = count + hits
  return count > 0 and {math.min(count, MAX), alive}, fits
end

if general % 2 == 1 then
  function algorithm.correct(s, _, jitter, period, now, difference)
    return algorithm.take(s, MAX, jitter, period, now, difference, true)
  end
end
