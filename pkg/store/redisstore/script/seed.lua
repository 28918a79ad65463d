-- Puts states back that the server has lost. KEYS are names of states. ARGV[1] is the header that
-- request.lua describes. For each key ARGV has two more texts. The first one is a byte with the
-- number of the algorithm, and the value of the state. The second one is the period in
-- microseconds; of a counter it is the instant of expiry in Unix milliseconds. A key that has a
-- state gets one that admits no more than either, see merge in request.lua. The answer is the
-- number of keys that were written.
local written = 0
for i, key in ipairs(KEYS) do
  local number, value = ARGV[2 * i]:byte(), ARGV[2 * i]:sub(2)
  local by, period = algorithms[number], tonumber(ARGV[2 * i + 1])
  local raw = redis.pcall('GET', key)
  if number == 0 then
    if not raw or type(raw) == 'string' and (tonumber(raw) or math.huge) < tonumber(value) then
      redis.call('SET', key, value, 'PXAT', ARGV[2 * i + 1])
      written = written + 1
    end
  elseif not raw or type(raw) == 'string' and #raw == #value then
    local is, state = raw and read(by, raw, period), read(by, value, period)
    if is and by.merge then
      state = by.merge(is, state, period)
    elseif is and by.idle(is, period) >= by.idle(state, period) then
      state = is
    end
    if state ~= is then
      local expiry = string.format('%d', floor((math.min(by.idle(state, period), EXACT) + 999) / 1000) + later)
      redis.call('SET', key, pack(by.format, state[1], state[2], state[3], state[4], state[5]), 'PXAT', expiry)
      written = written + 1
    end
  end
end
return written
