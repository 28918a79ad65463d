-- A state is {instant of the last charge, count of its window}.

algorithm.windows = true

function algorithm.take(s, requests, _, period, now, hits, count_rejected)
  local count = 0
  if s then
    if s[1] > now then now = s[1] end
    if floor(s[1] / period) == floor(now / period) then count = s[2] end
  end
  local fits = hits <= 0 or count + hits <= requests
  if hits == 0 then return s, count <= requests end
  if not fits and not count_rejected then return s, false end
  count = count + hits
  if count >= EXACT then count = EXACT - 1 end
  return count > 0 and {now, count}, fits
end

function algorithm.idle(s, period) return (floor(s[1] / period) + 1) * period end

if carrying then
  function algorithm.content(s, period, now)
    return floor(s[1] / period) >= floor(now / period) and s[2] or 0, 0
  end
end

if general % 2 == 1 then
  function algorithm.correct(s, _, _, period, now, difference, at)
    if floor(at / period) ~= floor(math.max(now, s and s[1] or 0) / period) then return s end
    return algorithm.take(s, EXACT, nil, period, now, difference, true)
  end
end

if general == SEED then
  function algorithm.merge(s, lost, period)
    local newer = floor(lost[1] / period) - floor(s[1] / period)
    return (newer > 0 or newer == 0 and lost[2] > s[2]) and lost or s
  end
end
