-- The changes of grants since a version. Writes nothing, so a server without free memory answers
-- too. KEYS[1] is a hash from slot to "UNTIL JSON", with the end in Unix milliseconds. The value is
-- "" after the end of a grant. KEYS[2] is a sorted set of the same slots by the version of the last
-- change. KEYS[3] is a sorted set of slots with a grant, by the end. KEYS[4] is a hash with epoch,
-- version, floor, and the number of grants.
-- ARGV: the epoch and the version that the caller knows, the most changes to return, and 1 if the
-- caller reads all grants now. The answer has the epoch, the version, the version after which the
-- changes come, the number of grants, and now in Unix milliseconds. For each change it has the
-- slot, the version and the value. The epoch is "" where nothing is, and "!" where some of the keys
-- are lost.
local meta = redis.call('HMGET', KEYS[4], 'epoch', 'version', 'floor', 'grants')
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local slots, changed, grants = redis.call('HLEN', KEYS[1]), redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3])
if not meta[1] and slots + changed + grants == 0 then return {'', '0', '0', '0', now} end
if not meta[1] or slots ~= changed or grants ~= tonumber(meta[4]) then return {'!', '0', '0', '0', now} end
local version, from = tonumber(meta[2]), tonumber(ARGV[2])
if meta[1] ~= ARGV[1] or version < from or ARGV[4] ~= '1' and from < tonumber(meta[3]) then from = 0 end
local out = {meta[1], string.format('%.0f', version), string.format('%.0f', from), tostring(grants), now}
local changes = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%.0f', from), '+inf', 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[3]))
local names = {}
for i = 1, #changes, 2 do names[#names + 1] = changes[i] end
local values = #names > 0 and redis.call('HMGET', KEYS[1], unpack(names))
for i, name in ipairs(names) do
  out[#out + 1] = name
  out[#out + 1] = changes[2 * i]
  out[#out + 1] = values[i] or ''
end
return out
