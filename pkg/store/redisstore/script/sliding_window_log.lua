-- The value in Redis is a list. An entry is I7 instant and I5 hits, the newest last. After the
-- entries the list has I7 instant of the last charge and I5 hits of all entries. A state is {hits
-- to add, hits to give back, charged}, for apply to do.
local ENTRY, CHUNK = '<I7I5', 32

-- move moves all instants of a list back, in microseconds.
local function move(key, period, by)
  local all = redis.call('LRANGE', key, 0, -1)
  redis.call('DEL', key)
  for first = 1, #all, CHUNK do
    local some = {}
    for i = first, math.min(first + CHUNK - 1, #all) do
      local at, hits = unpack(ENTRY, all[i])
      some[#some + 1] = pack(ENTRY, math.max(0, at - by), hits)
    end
    redis.call('RPUSH', key, spread(some))
  end
  redis.call('PEXPIREAT', key, floor((unpack(ENTRY, all[#all]) - by + period + 999) / 1000) + later)
end

-- open returns a table about the list: len entries with hits, the instant now, and first expired
-- entries; the other entries have live hits.
function algorithm.open(key, period, now)
  local tail = redis.call('LINDEX', key, -1)
  local g = {key = key, period = period, now = now, len = 0, hits = 0, first = 0, live = 0, head = {}}
  if not tail then return g end
  local last
  last, g.hits = unpack(ENTRY, tail)
  if last - now > BACK then -- the clock has gone back: each hit keeps its age
    move(key, period, last - now)
    last = now
  end
  if last > now then g.now = last end
  g.len = redis.call('LLEN', key) - 1
  g.live = g.hits
  while g.first < g.len do
    local at, hits = algorithm.oldest(g, g.first)
    if g.now - at < period then break end
    g.first, g.live = g.first + 1, g.live - hits
  end
  return g
end

-- oldest returns entry i; entry 0 is the oldest.
function algorithm.oldest(g, i)
  local e = g.head[i]
  if not e then
    local chunk = redis.call('LRANGE', g.key, i, i + CHUNK - 1)
    for n = 1, #chunk do g.head[i + n - 1] = chunk[n] end
    e = chunk[1]
  end
  local at, hits = unpack(ENTRY, e)
  return at, hits
end

-- newest_left returns the instant of the newest entry that keeps hits when that many are given
-- back; nil if no entry does.
local function newest_left(g, back)
  for i = g.len - 1, 0, -1 do
    local at, hits = unpack(ENTRY, redis.call('LINDEX', g.key, i))
    if back < hits then return at end
    back = back - hits
  end
end

function algorithm.take(s, requests, _, _, _, hits, count_rejected, g)
  local added, refunded, charged = s[1], s[2], s[3]
  local logged = g.live - math.min(refunded, g.live)
  local used = logged + added
  local allowed = true
  if hits < 0 then
    local back = math.min(-hits, used)
    local from_added = math.min(back, added)
    added, refunded, charged = added - from_added, refunded + back - from_added, charged or back > 0
    used = used - back
  elseif used + hits <= requests then
    added, used, charged = added + hits, used + hits, charged or hits > 0
  elseif hits > 0 and requests == 0 then
    return s, false, 0, g.period, g.period
  else
    allowed = false
    if count_rejected and used < 2 * requests then
      local counted = math.min(hits, 2 * requests - used)
      added, used, charged = added + counted, used + counted, charged or counted > 0
    end
  end
  local reset, retry = 0, 0
  if added > 0 then
    reset = g.period
  elseif used > 0 then
    local at = newest_left(g, refunded)
    if at then reset = g.period - (g.now - at) end
  end
  if not allowed then
    retry = g.period
    local need = used + hits - requests
    if hits > requests then
      if reset > 0 then retry = reset end
    elseif need <= used - added then
      for i = g.first, g.len - 1 do
        local at, n = algorithm.oldest(g, i)
        if need <= n then
          retry = g.period - (g.now - at)
          break
        end
        need = need - n
      end
    end
  end
  return {added, refunded, charged}, allowed, math.max(0, requests - used), retry, reset
end

if general % 2 == 1 or general % 8 >= 4 then
  -- enter puts hits of an earlier instant into the list, up to twice the limit.
  local function enter(g, requests, hits, at)
    hits = math.min(hits, 2 * requests - g.live)
    if hits <= 0 or g.now - at >= g.period then return end
    local i, beyond = g.first, g.len -- i becomes the first entry that is not earlier
    while i < beyond do
      local middle = floor((i + beyond) / 2)
      if unpack(ENTRY, redis.call('LINDEX', g.key, middle)) < at then i = middle + 1 else beyond = middle end
    end
    g.hits, g.live, g.head = g.hits + hits, g.live + hits, {}
    local tail = pack(ENTRY, g.now, g.hits)
    if i < g.len then
      local later = redis.call('LRANGE', g.key, i, -1)
      local when, n = unpack(ENTRY, later[1])
      if when == at then
        redis.call('LSET', g.key, i, pack(ENTRY, when, n + hits))
        redis.call('LSET', g.key, -1, tail)
        return
      end
      later[#later] = tail
      table.insert(later, 1, pack(ENTRY, at, hits))
      if i > 0 then redis.call('LTRIM', g.key, 0, i - 1) end
      for from = 1, #later, CHUNK do
        redis.call('RPUSH', g.key, spread(later, from, math.min(from + CHUNK - 1, #later)))
      end
      if i == 0 then redis.call('LTRIM', g.key, g.len + 1, -1) end -- after the push, so that the key keeps its expiry
      g.len = g.len + 1
      return
    end
    if g.len == 0 then
      redis.call('RPUSH', g.key, pack(ENTRY, at, hits), tail)
    else
      redis.call('RPUSH', g.key, tail) -- first, as only a push needs memory
      redis.call('LSET', g.key, -2, pack(ENTRY, at, hits))
    end
    g.len = g.len + 1
    redis.call('PEXPIREAT', g.key, floor((at + g.period + 999) / 1000) + later)
  end

  -- less returns the remaining hits, and the time until the list is idle, after hits of an instant
  -- were given back. less writes nothing.
  function algorithm.less(g, requests, hits, at)
    local used, reset = g.live, 0
    for i = g.len - 1, g.first, -1 do
      local when, n = unpack(ENTRY, redis.call('LINDEX', g.key, i))
      if when == at then
        used = used - math.min(n, hits)
        n = n - hits
      end
      if n > 0 and reset == 0 then reset = g.period - (g.now - when) end
      if when < at then break end
    end
    return math.max(0, requests - used), reset
  end

  -- correct takes hits of an earlier instant out of the list, or puts hits into it.
  function algorithm.correct(g, requests, difference, at)
    if difference > 0 then return enter(g, requests, difference, math.min(at, g.now)) end
    for i = g.len - 1, 0, -1 do
      local when, hits = unpack(ENTRY, redis.call('LINDEX', g.key, i))
      if when < at then return end
      if when == at then
        local back = math.min(hits, -difference)
        g.hits, g.head = g.hits - back, {}
        if i >= g.first then g.live = g.live - back end -- else the entry has expired since
        if g.len == 1 and hits == back then
          redis.call('DEL', g.key)
          g.len, g.first = 0, 0
          return
        end
        if hits > back then
          redis.call('LSET', g.key, i, pack(ENTRY, when, hits - back))
        else
          redis.call('LSET', g.key, i, '')
          redis.call('LREM', g.key, -1, '')
          g.len = g.len - 1
          if i < g.first then g.first = g.first - 1 end
        end
        redis.call('LSET', g.key, -1, pack(ENTRY, g.now, g.hits))
        return
      end
    end
  end
end

-- apply changes the list as the state says, and returns the instant from which the key is idle. The
-- first command that writes is one that Redis refuses without memory: see apply.lua.
function algorithm.apply(g, s)
  local added, refunded, place = s[1], s[2], g.len -- place of the first element that changes
  local newest, hits, back, sum, entries = 0, 0, 0, g.live, {} -- the newest entry with hits, and the elements from place on
  while place > g.first and hits == 0 do
    place = place - 1
    newest, hits = unpack(ENTRY, redis.call('LINDEX', g.key, place - g.len - 1))
    back = math.min(hits, refunded)
    hits, refunded, sum = hits - back, refunded - back, sum - back
  end
  if hits + added == 0 then
    if g.len > 0 then
      redis.call('LSET', g.key, -1, '')
      redis.call('DEL', g.key)
    end
    return nil
  end
  if hits > 0 and (added == 0 or newest < g.now) then
    if back > 0 then entries[1] = pack(ENTRY, newest, hits) else place = place + 1 end
    hits = 0
  end
  if added > 0 then
    newest, sum = g.now, sum + added
    entries[#entries + 1] = pack(ENTRY, newest, hits + added)
  end
  entries[#entries + 1] = pack(ENTRY, g.now, sum)
  local there = g.len > 0 and g.len + 1 - place or 0 -- elements from place on
  for i = 1, math.min(there, #entries) do redis.call('LSET', g.key, i - 1 - there, entries[i]) end
  if there < #entries then redis.call('RPUSH', g.key, spread(entries, there + 1)) end
  if g.first > 0 or there > #entries then redis.call('LTRIM', g.key, g.first, place + #entries - 1) end
  return newest + g.period
end
