-- A change of grants. KEYS as in sync.lua. The script needs no command that an older Weir did not
-- need. ARGV has the change, the epoch of an empty Redis, the most grants, three instants, and then
-- one of these rows. The caller's clock has been past the first instant for the grace time. The
-- second one is now by that clock. After the third one, by the clock of Redis, nothing changes: the
-- caller waits no more. 0 is no such instant.
--   give     slot, until, JSON                   gives a grant, in place of the one in the slot.
--   end      slot, the first bytes of the JSON   ends the grant in the slot if the JSON begins like that.
--   restore  slot, until, JSON, start, …         gives grants in slots that have never changed in this epoch. With a start, gives the grant
--                                                if the JSON in the slot begins like that.
--   repair                                       begins a new epoch with the grants that are left, if some of the keys are lost.
-- Instants are Unix milliseconds. The answer is ok, full, unknown or late, and the value that was
-- in the slot or "".
if redis.replicate_commands then redis.replicate_commands() end -- Redis before version 7 needs this call to write after TIME
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if tonumber(ARGV[6]) > 0 and now > tonumber(ARGV[6]) then return {'late', ''} end
local grants, changes, ends, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known = redis.call('HMGET', meta, 'epoch', 'version', 'floor', 'grants')
local epoch, version, floor = known[1], tonumber(known[2]) or 0, tonumber(known[3]) or 0

local function put(slot, value)
  version = version + 1
  redis.call('HSET', grants, slot, value)
  redis.call('ZADD', changes, string.format('%.0f', version), slot)
  local untilAt = string.match(value, '^(%d+) ')
  if untilAt then redis.call('ZADD', ends, untilAt, slot) else redis.call('ZREM', ends, slot) end
end

local slots, had = redis.call('HLEN', grants), redis.call('ZCARD', ends)
if slots ~= redis.call('ZCARD', changes) or had ~= (tonumber(known[4]) or 0) or not epoch and slots > 0 then
  local left = {}
  for _, slot in ipairs(redis.call('ZRANGE', changes, 0, -1)) do
    local value = redis.call('HGET', grants, slot)
    if value and value ~= '' then left[#left + 1] = {slot, value} end
  end
  redis.call('DEL', grants, changes, ends, meta)
  epoch, version, floor = false, 0, 0
  for _, one in ipairs(left) do put(one[1], one[2]) end
end
epoch = epoch or ARGV[2]

-- Grants go for good when they have ended by the caller's clock for the grace time, and by the
-- clock of Redis. Ten seconds are for clocks that differ a little. So one wrong clock costs no
-- grant.
local function ended(by, most)
  return redis.call('ZRANGEBYSCORE', ends, '-inf', string.format('%.0f', math.min(now - 10000, tonumber(by))), 'LIMIT', 0, most)
end
for _, slot in ipairs(ended(ARGV[4], 1000)) do put(slot, '') end

-- Slots without a grant are forgotten a while later. A process that knows only older versions reads
-- all grants.
local has = redis.call('ZCARD', ends)
if redis.call('ZCARD', changes) > 2 * has + 10000 then
  local old = redis.call('ZRANGE', changes, 0, 1999, 'WITHSCORES')
  for i = 1, #old, 2 do
    if redis.call('HGET', grants, old[i]) == '' then
      redis.call('HDEL', grants, old[i])
      redis.call('ZREM', changes, old[i])
    end
  end
  floor = tonumber(old[#old])
end

-- Grants that have ended make room for new ones, the first one to end first.
local most, answer = tonumber(ARGV[3]), {'ok', ''}
local function room()
  if has < most then return true end
  local first = ended(ARGV[5], 1)[1]
  if not first then return false end
  put(first, '')
  has = has - 1
  return true
end

if ARGV[1] == 'give' then
  local was = redis.call('HGET', grants, ARGV[7]) or ''
  if was == '' and not room() then
    answer = {'full', ''}
  else
    put(ARGV[7], ARGV[8] .. ' ' .. ARGV[9])
    answer[2] = was
  end
elseif ARGV[1] == 'end' then
  local was = redis.call('HGET', grants, ARGV[7]) or ''
  local json = string.match(was, '^%d+ (.*)$')
  if json and string.sub(json, 1, #ARGV[8]) == ARGV[8] then
    put(ARGV[7], '')
    answer[2] = was
  else
    answer = {'unknown', ''}
  end
elseif ARGV[1] == 'restore' then
  for i = 7, #ARGV, 4 do
    local was, start = redis.call('HGET', grants, ARGV[i]), ARGV[i + 3]
    local json = was and string.match(was, '^%d+ (.*)$')
    if start ~= '' and json and string.sub(json, 1, #start) == start then
      put(ARGV[i], ARGV[i + 1] .. ' ' .. ARGV[i + 2])
    elseif start == '' and not was and room() then
      put(ARGV[i], ARGV[i + 1] .. ' ' .. ARGV[i + 2])
      has = has + 1
    end
  end
end
redis.call('HSET', meta, 'epoch', epoch, 'version', string.format('%.0f', version), 'floor', string.format('%.0f', floor),
  'grants', redis.call('ZCARD', ends))
return answer
