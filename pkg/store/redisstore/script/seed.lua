-- Puts states back that the server has lost. KEYS are names of states. For each key ARGV has two texts. The first one is 's' and the value
-- of a state, or 'c' and the value of a counter. The second one is the instant of expiry in Unix milliseconds.
-- A key that has a newer state, or a larger count, keeps it. The answer is the number of keys that were written.
local written = 0
for i, key in ipairs(KEYS) do
  local kind, value = ARGV[2 * i - 1]:sub(1, 1), ARGV[2 * i - 1]:sub(2)
  local is = redis.pcall('GET', key)
  local lost = not is
  if type(is) == 'string' then
    if kind == 'c' then
      lost = (tonumber(is) or math.huge) < tonumber(value)
    elseif #is == #value then
      lost = struct.unpack('<I7', is) < struct.unpack('<I7', value) -- the instants of the last charges
    end
  end
  if lost then
    redis.call('SET', key, value, 'PXAT', ARGV[2 * i])
    written = written + 1
  end
end
return written
