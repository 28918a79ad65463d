-- The releases of the time zones that processes have. ARGV has the release of this process, the
-- instant in Unix microseconds, and for how long a release is known. KEYS[1] has for each release
-- its name, and the last instant at which a process told it. The answer has the releases of other
-- processes.
if redis.replicate_commands then redis.replicate_commands() end -- Redis before version 7 needs this call to write a value that depends on one

local LONGEST, MOST = 32, 16 -- bytes of a name, and other names
local own, now, known = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local all, others = {own .. ' ' .. ARGV[2]}, {}
for release, at in (redis.call('GET', KEYS[1]) or ''):gmatch('(%S+) (%d+)') do
  if release ~= own and math.abs(now - at) < known and #release <= LONGEST and #others < MOST then
    all[#all + 1] = release .. ' ' .. at
    others[#others + 1] = release
  end
end
redis.call('SET', KEYS[1], table.concat(all, ' '), 'PX', math.ceil(known / 1000))
return others
