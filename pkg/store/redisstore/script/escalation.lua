-- A state has five numbers. The first is the instant of the last offense. The second is blocks + 16
-- * offenses that count + 128 * seconds of the block. Then come two gaps,
-- the third gap + 2^19 * within in seconds, and forget in seconds. A gap is the seconds
-- from an earlier offense to the last one. The requests are offenses + 8 * windows + 16 * period in
-- milliseconds + 2^33 * within; the capacity is forget. See Escalation in package algorithms.
local SECOND, GAP, WITHIN = 1000000, 524288, 8589934592

local function block_end(s) return s[1] + floor(s[2] / 128) * SECOND end

function algorithm.idle(s)
  if s[2] % 16 == 0 then return s[1] + floor(s[4] / GAP) * SECOND end
  return math.max(s[1] + s[5] * SECOND, block_end(s))
end

-- offend returns the state after an offense, which may begin a block of so many seconds.
local function offend(s, offenses, within, forget, now, seconds)
  local blocks, gaps = 0, {}
  if s then
    blocks = s[2] % 16
    local since = floor(now / SECOND) - floor(s[1] / SECOND)
    local ages = {since, since + s[3] % GAP, since + floor(s[3] / GAP), since + s[4] % GAP}
    for n = 1, floor(s[2] / 16) % 8 do
      if ages[n] >= within then break end
      gaps[n] = ages[n]
    end
  end
  if #gaps + 1 >= offenses then return {now, math.min(blocks + 1, 15) + 128 * seconds, 0, within * GAP, forget} end
  return {now, blocks + 16 * (#gaps + 1), (gaps[1] or 0) + (gaps[2] or 0) * GAP, (gaps[3] or 0) + within * GAP, forget}
end

function algorithm.take(s, packed, forget, _, now, hits)
  local is = s
  if is then
    if algorithm.idle(is) <= now then is = false else now = math.max(now, is[1]) end
  end
  if is and block_end(is) > now then return s, false end
  if hits <= 0 then return s, true end
  local of = floor(packed / 16) % 536870912 * 1000
  local told = is and now - is[1] < of
  if is and floor(packed / 8) % 2 == 1 then told = floor(is[1] / of) == floor(now / of) end
  if told then return s, true end
  local next = offend(is, packed % 8, floor(packed / WITHIN), forget, now, hits)
  return next, block_end(next) <= now
end

if general % 2 == 1 then
  -- correct changes nothing: an offense is told at once or not at all.
  function algorithm.correct(s) return s end
end
