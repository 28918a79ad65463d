-- A state is {instant of the last charge, microseconds from the first hit to that instant, count}.

function algorithm.take(s, requests, _, period, now, hits, count_rejected)
  local count, begun = 0, now
  if s then
    if s[1] > now then now = s[1] end
    begun = s[1] - s[2]
    if now - begun < period then count = s[3] else begun = now end
  end
  local fits = hits < 0 or count + hits <= requests
  if hits == 0 or hits > 0 and requests == 0 or not fits and not count_rejected then return s, fits end
  count = count + hits
  return count > 0 and {now, now - begun, count}, fits
end

function algorithm.idle(s, period) return s[1] - s[2] + period end

function algorithm.content(s, period, now) return now - (s[1] - s[2]) < period and s[3] or 0, 0 end

if general == 1 then
  function algorithm.correct(s, _, _, period, now, difference, at)
    if not s then return difference > 0 and {at, 0, difference} end
    local begun = s[1] - s[2]
    if at < begun or at - begun >= period then return s end
    return s[3] + difference > 0 and {s[1], s[2], s[3] + difference}
  end
end
