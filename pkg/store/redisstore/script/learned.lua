-- A state is {instant of the last charge, quantile in 2^-20 hits, number of charges up to 20}. The
-- quantile is in thousandths, where other algorithms have the requests. See Learned in package
-- algorithms.
local UNIT, MOST = 1048576, 16000

function algorithm.idle(s, period) return s[1] + (s[3] < 20 and period / 30 or period) end

function algorithm.take(s, p, _, period, now, hits)
  if hits <= 0 then return s, true end
  local last, quantile, n = now, 0, 0
  if s and algorithm.idle(s, period) > now then last, quantile, n = math.max(s[1], now), s[2], s[3] end
  if n < 20 then
    quantile = math.max(quantile, hits * UNIT)
  elseif hits > math.ceil(quantile / UNIT) then
    quantile = math.min(muldiv(quantile, MOST + p, MOST - p), 4294967295 * UNIT)
  else
    quantile = math.max(muldiv(quantile, MOST - 1000 + p, MOST + 1000 - p), UNIT)
  end
  return {last, quantile, math.min(n + 1, 20)}, true
end

if general % 2 == 1 then
  -- correct changes nothing: costs are learned at once or not at all.
  function algorithm.correct(s) return s end
end
