-- A heartbeat of one process. ARGV has a text of 8 bytes that names the process, and six numbers.
--   The instant in Unix microseconds, or 0 for the time of the server.
--   For how long a process is known after its last beat, in microseconds.
--   1 if the process has hits or holders to tell.
--   An instant: the answer counts the other processes that have not beaten since, or have something to tell. 0: the answer has 0.
--   1 if the process leaves.
--   The deadline, or 0: from this instant on nobody waits for the answer, and the beat does not count.
-- The value of KEYS[1] has a record for each process, in the order of their first beats. A record has the name, I7 instant of the last
-- beat, and I1 1 if the process has something to tell. The answer has the instant and the number of processes. Then it has the place of this
-- process in their order, from 0 on, the count, and 1 if the process was known before.
if redis.replicate_commands then redis.replicate_commands() end -- Redis before version 7 needs this call to write after TIME

local RECORD, SIZE = '<c8I7I1', 16
local name, n = ARGV[1], {}
for i = 2, #ARGV do n[i - 1] = tonumber(ARGV[i]) end
local now, known, tells, since, leaves, deadline = n[1], n[2], n[3], n[4], n[5] == 1, n[6]
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local beats = not leaves and (deadline == 0 or now < deadline)
local raw, records, place, untold, there = redis.call('GET', KEYS[1]), {}, 0, 0, false
local function add(who, at, owes)
  if who == name then place = #records end
  records[#records + 1] = struct.pack(RECORD, who, at, owes)
end
if raw and #raw % SIZE == 0 then -- else it is not a value of ours
  for at = 1, #raw, SIZE do
    local who, beat, owes = struct.unpack(RECORD, raw, at)
    local mine = who == name
    if mine and beats then
      there = true
      add(name, now, tells)
    elseif not (mine and leaves) and now - beat < known and beat - now < known then
      add(who, beat, owes)
      if since > 0 and not mine and (beat < since or owes == 1) then untold = untold + 1 end
    end
  end
end
if beats and not there then add(name, now, tells) end

if #records == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], table.concat(records), 'PX', math.ceil(known / 1000))
end
return {now, #records, place, untold, there and 1 or 0}
