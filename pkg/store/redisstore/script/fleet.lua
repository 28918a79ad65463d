-- A heartbeat of one process. ARGV has six numbers.
--   The instant in Unix microseconds, or 0 for the time of the server.
--   The length of an epoch in microseconds.
--   The first and the last epoch in which the process was counted without a gap, or 0.
--   1 if the process leaves.
--   The deadline, or 0: from this instant on nobody waits for the answer, and the process is not counted.
-- The value of KEYS[1] is I8 epoch, and three times I4: the processes counted in this epoch and in the two before. The answer has the
-- same numbers and the instant.
if redis.replicate_commands then redis.replicate_commands() end -- Redis before version 7 needs this call to write after TIME

local now, length, first, last, leaves = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local deadline = tonumber(ARGV[6])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local epoch, counts = math.floor(now / length), {0, 0, 0}
local raw = redis.call('GET', KEYS[1])
if raw and #raw == 20 then -- else it is not a value of ours
  local at, a, b, c = struct.unpack('<I8I4I4I4', raw)
  local gone = epoch - at
  if gone < 0 and gone > -3 then epoch, gone = at, 0 end -- the clock went back a little
  if gone == 0 then counts = {a, b, c} elseif gone == 1 then counts = {0, a, b} elseif gone == 2 then counts = {0, 0, a} end
end
if leaves then
  for i = 1, 3 do
    local e = epoch - i + 1
    if first <= e and e <= last then counts[i] = math.max(0, counts[i] - 1) end
  end
elseif last ~= epoch and (deadline == 0 or now < deadline) then
  counts[1] = counts[1] + 1
end
local is = struct.pack('<I8I4I4I4', epoch, counts[1], counts[2], counts[3])
if is ~= raw then redis.call('SET', KEYS[1], is, 'PX', math.ceil(3 * length / 1000)) end
return {epoch, counts[1], counts[2], counts[3], now}
