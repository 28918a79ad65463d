-- The value in Redis is a sorted set: the holders that hold hits, each with the instant at which it
-- runs out. A second key, the book, is a hash. A holder has a field there:
--   I4 hits, I7 instant of the begin, I7 instant at which the holder runs out.
-- The field without a name has a summary:
--   I8 hits of all holders, I7 instant of the last change.
--   I7 instant at which the first holder runs out, I7 instant at which the last one does.
--   I7 instant at which the two keys expire.
--
-- A state is {hits of all holders, instant of the last change, false, first, last, expiry}. Each
-- change of a holder is written at once, with the summary. So a script that fails later, and is run
-- again, finds the holder after the change, and repeats nothing.
local SUMMARY, HELD, CHUNK = '<I8I7I7I7I7', '<I4I7I7', 128

algorithm.slots = true

local function decimal(n) return string.format('%.0f', n) end

local function summary(s) return pack(SUMMARY, s[1], s[2], s[4], s[5], s[6]) end

local function unused() return {0, 0, false, 0, 0, 0} end

-- forget deletes all holders.
local function forget(g)
  redis.call('DEL', g.set, g.book)
  return unused()
end

-- runs_out returns the instant at which the first or the last holder runs out; rank is 0 or -1.
local function runs_out(g, rank)
  local found = redis.call('ZRANGE', g.set, rank, rank, 'WITHSCORES')
  return found[2] and tonumber(found[2])
end

-- expire has the two keys expire after the last holder.
local function expire(g, s)
  local at = decimal(floor((s[6] + 999) / 1000) + later)
  redis.call('PEXPIREAT', g.set, at)
  redis.call('PEXPIREAT', g.book, at)
end

-- rarely returns the functions that few requests need.
local function rarely()
  local rare = {}

  -- purge frees the hits of the holders that have run out at an instant.
  function rare.purge(g, s, at)
    if s[5] <= at then return forget(g) end
    local gone
    repeat
      gone = redis.call('ZRANGEBYSCORE', g.set, '-inf', decimal(at), 'LIMIT', 0, CHUNK)
      if #gone > 0 then
        for _, raw in ipairs(redis.call('HMGET', g.book, spread(gone))) do
          if raw then s[1] = s[1] - unpack(HELD, raw) end
        end
        redis.call('ZREM', g.set, spread(gone))
        redis.call('HDEL', g.book, spread(gone))
      end
    until #gone < CHUNK
    local first = runs_out(g, 0)
    -- Redis may have evicted one of the two keys. Then the hits that are left have no holder.
    if not first or s[1] <= 0 or redis.call('ZCARD', g.set) ~= redis.call('HLEN', g.book) - 1 then return forget(g) end
    s[4] = first
    redis.call('HSET', g.book, '', summary(s))
    return s
  end

  -- move moves all instants back: the clock has gone back, and each holder keeps its age.
  function rare.move(g, s, by)
    for _, holder in ipairs(redis.call('ZRANGE', g.set, 0, -1)) do
      local raw = redis.call('HGET', g.book, holder)
      if raw then
        local hits, at, till = unpack(HELD, raw)
        redis.call('HSET', g.book, holder, pack(HELD, hits, math.max(0, at - by), till - by))
        redis.call('ZADD', g.set, decimal(till - by), holder)
      end
    end
    for i = 2, 6 do
      if i ~= 3 then s[i] = math.max(0, s[i] - by) end
    end
    redis.call('HSET', g.book, '', summary(s))
    expire(g, s)
  end

  return rare
end

-- start returns a table about the two keys, the state at this instant, and the numbers of a holder
-- in the book.
function algorithm.start(set, book, holder)
  local g, s = {set = set, book = book, now = now}, nil
  local found = redis.call('HMGET', book, '', holder)
  if not found[1] then
    g.fresh = true
    return g, unused()
  end
  s = {0, 0, false, 0, 0, 0}
  s[1], s[2], s[4], s[5], s[6] = unpack(SUMMARY, found[1])
  if s[2] - now > BACK then
    rarely().move(g, s, s[2] - now)
    found[2] = redis.call('HGET', book, holder)
  end
  local at = math.max(now, s[2])
  if s[4] <= at then s = rarely().purge(g, s, at) end
  if found[2] then return g, s, unpack(HELD, found[2]) end
  return g, s
end

-- find returns the numbers of a holder in the book.
function algorithm.find(g, holder)
  local raw = redis.call('HGET', g.book, holder)
  if raw then return unpack(HELD, raw) end
end

-- take returns the state with more hits and the decision, as Decide in package algorithms. at_most
-- is the time of a new holder. Only hold writes.
function algorithm.take(s, requests, at_most, _, _, hits)
  local used, first, last, at = s[1], s[4], s[5], math.max(now, s[2])
  local allowed = used <= requests and hits <= requests - used
  if used == 0 then last = at end
  local next = s
  if allowed and hits > 0 then
    next = algorithm.with(s, hits, at + at_most)
    used, last = next[1], next[5]
  end
  local reset, retry = last - at, 0
  if not allowed then
    if used == 0 then
      retry = at_most
    elseif hits > requests then
      retry = reset
    else
      retry = first - at
    end
  end
  return next, allowed, math.max(0, requests - used), retry, reset
end

-- with returns the state with hits until an instant, and writes nothing.
function algorithm.with(s, hits, till)
  return {s[1] + hits, math.max(s[2], now), false, s[1] > 0 and math.min(s[4], till) or till, math.max(s[5], till), s[6]}
end

-- hold makes a holder hold hits from an instant until another, and returns the state.
function algorithm.hold(g, s, holder, hits, at, till)
  if g.fresh then -- a set without its book would be a rest; a value of another program is an error, and stays
    redis.call('ZREMRANGEBYRANK', g.set, 0, -1)
    g.fresh = false
  end
  local next = algorithm.with(s, hits, till)
  if till > s[6] then next[6] = till + floor((till - at) / 8) end
  redis.call('HSET', g.book, '', summary(next), holder, pack(HELD, hits, at, till))
  redis.call('ZADD', g.set, decimal(till), holder)
  if next[6] > s[6] then expire(g, next) end
  return next
end

-- free ends a holder of hits until an instant, and returns the state.
function algorithm.free(g, s, holder, hits, till)
  if s[1] <= hits then return forget(g) end
  redis.call('ZREM', g.set, holder)
  local next = {s[1] - hits, math.max(s[2], now), false, s[4], s[5], s[6]}
  if till <= s[4] then next[4] = runs_out(g, 0) end
  if till >= s[5] then next[5] = runs_out(g, -1) end
  if not next[4] or not next[5] then return forget(g) end -- Redis has evicted the set
  redis.call('HDEL', g.book, holder)
  redis.call('HSET', g.book, '', summary(next))
  return next
end

-- without returns the state after the end of a holder, and writes nothing.
function algorithm.without(g, s, holder, hits, till)
  local next = {math.max(0, s[1] - hits), math.max(s[2], now), false, s[4], s[5], s[6]}
  local function other(field, from, to)
    local found = redis.call('ZRANGE', g.set, from, to, 'WITHSCORES')
    for i = 1, #found, 2 do
      if found[i] ~= holder then next[field] = tonumber(found[i + 1]) end
    end
  end
  if till <= s[4] then other(4, 0, 1) end
  if till >= s[5] then other(5, -2, -1) end
  return next
end

algorithm.open = true -- no state of its own; a request without a holder asks as a begin of 0 hits
