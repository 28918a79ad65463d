-- Applies rate limit transactions to the states in KEYS, all at one instant, and returns the states as they were before.
--
-- ARGV[1] is binary, little-endian:
--   I8 instant in Unix microseconds, 0 for the server's own time; only tests give one
--   I8 instant from which nothing is to be done, as nobody waits for the answer any more; 0 for never
--   I1 for each of the five algorithms, in the order of their numbers: 1 if there are charges of it, else 0
--   I1 1 if there are transactions of several charges or of kind 3, else 0
--   then transactions: I1 kind, I4 repeat, I4 number of charges, and for each charge
--     I4 key (index into KEYS), I1 algorithm, I1 flags, I4 requests, I4 capacity, I7 period in microseconds, i5 hits
--   flags: 1 and 2 the mode, 4 count rejected hits, 8 of the same rule as the charge before, 16 a correction follows:
--     I8 instant, I5 and I7 deficit before (whole hits and 1/period hits), i5 hits, I1 length and state as it was after,
--     I1 length and state before
--
-- The answer is binary too: I1 0 (1: too late, and nothing done), I8 instant, for each key I1 length and the state before
-- (none for those of sliding_window_log), then for each transaction I4 times admitted and for each of its charges of
-- sliding_window_log I1 allowed, I4 remaining, I8 retry and I8 reset in microseconds, and of kind 1 how many hits are in the
-- key's log for the transaction (I5). Those do not repeat.
--
-- Every number is a whole one below 2^53, where Lua's are exact; products beyond that go through muldiv.

if redis.replicate_commands then redis.replicate_commands() end -- needed before Redis 7, where it is what always happens

local floor, pack, unpack = math.floor, struct.pack, struct.unpack
local EXACT = 9007199254740992 -- 2^53
local TAKE, RESERVE, PEEK, CORRECT = 0, 1, 2, 3 -- kinds of transactions
local LOG = 3 -- the number of sliding_window_log

local request = ARGV[1]
local now, deadline, uses_window, uses_bucket, uses_log, uses_counter, uses_integer, general, position =
  unpack('<I8I8I1I1I1I1I1I1', request)

-- muldiv returns floor(x*y/m) and x*y mod m, exactly, for m up to 2^52.
local function muldiv(x, y, m)
  local product = x * y
  if product < EXACT then
    local quotient = floor(product / m)
    return quotient, product - quotient * m
  end
  local xq = floor(x / m)
  local xr = x - xq * m
  local q, r, bit = 0, 0, 1
  while bit * 2 <= y do bit = bit * 2 end
  while bit >= 1 do
    q, r = q * 2, r * 2
    if r >= m then q, r = q + 1, r - m end
    if y >= bit then
      y, q, r = y - bit, q + xq, r + xr
      if r >= m then q, r = q + 1, r - m end
    end
    bit = bit / 2
  end
  return q, r
end

-- What follows are the algorithms; only those are made that are used, as that is much of the cost of a short script. A state is
-- a table that is never changed, or false for a key never used. take returns the next state and whether the hits are allowed,
-- which are those of TakeAs in package algorithms; fresh the instant from which a state is as if never used; correct the state
-- after more hits, or less, at an earlier instant.
local algorithms = {}

if uses_window == 1 then
local fixed_window = {format = '<I7I7'} -- {instant of the last charge, count}

function fixed_window.take(s, requests, _, period, now, hits, count_rejected)
  local count = 0
  if s then
    if s[1] > now then now = s[1] end
    if floor(s[1] / period) == floor(now / period) then count = s[2] end
  end
  if hits < 0 then
    count = count + hits
    return count > 0 and {now, count}, true
  end
  if hits == 0 then return s, count <= requests end
  if count + hits <= requests then return {now, count + hits}, true end
  if count_rejected then
    count = count + hits
    if count >= EXACT then count = EXACT - 1 end
    return {now, count}, false
  end
  return s, false
end

function fixed_window.fresh(s, period) return (floor(s[1] / period) + 1) * period end

if general == 1 then
function fixed_window.correct(s, _, _, period, now, delta, at)
  if s and s[1] > now then now = s[1] end
  if floor(at / period) ~= floor(now / period) then return s end
  local count = delta
  if s and floor(s[1] / period) == floor(now / period) then count = count + s[2] end
  if count >= EXACT then count = EXACT - 1 end
  return count > 0 and {now, count}
end
end

algorithms[1] = fixed_window
end

if uses_bucket == 1 then
-- {instant of the last charge, deficit in whole hits, and the rest in 1/period hits, requests, capacity}
local token_bucket = {format = '<I7I5I7I4I4'}

-- settled returns the deficit of a state at an instant.
function token_bucket.settled(s, period, now)
  local whole, part = s[2], s[3]
  if now > s[1] then
    local q, r = muldiv(now - s[1], s[4], period)
    whole, part = whole - q, part - r
    if part < 0 then whole, part = whole - 1, part + period end
    if whole < 0 then whole, part = 0, 0 end
  end
  return whole, part
end

function token_bucket.take(s, requests, capacity, period, now, hits, count_rejected)
  local whole, part, held, at, used = 0, 0, now, now, false
  local whole_was, part_was
  if s then
    whole, part = token_bucket.settled(s, period, now)
    if s[1] > now then held = s[1] end
    used = whole > 0 or part > 0
    whole_was, part_was = whole, part
    if used and s[5] ~= capacity then
      whole = whole + capacity - s[5]
      if whole < 0 then whole, part = 0, 0 end
      if whole >= 2 * capacity then whole, part = 2 * capacity, 0 end
    end
    if whole > 0 or part > 0 then at = held end
  end

  local allowed, taken = true, false
  if hits < 0 then
    local had = whole > 0 or part > 0
    whole = whole + hits
    if whole < 0 then whole, part = 0, 0 end
    taken = had or at ~= held
  elseif hits == 0 then
    allowed = whole < capacity or whole == capacity and part == 0
  elseif requests == 0 then
    allowed = false
  else
    local after = whole + hits
    if after < capacity or after == capacity and part == 0 then
      whole, taken = after, true
    else
      allowed = false
      if count_rejected then
        whole, taken = after, true
        if whole >= 2 * capacity then whole, part = 2 * capacity, 0 end
      end
    end
  end

  if not used or s[5] <= capacity then
    if used and not taken and s[4] == requests and s[5] == capacity then return s, allowed end
    return (whole > 0 or part > 0) and {at, whole, part, requests, capacity}, allowed
  end
  -- The bucket was larger: the larger capacity goes on to say when it is full.
  if requests == 0 then return s, allowed end
  if not taken then
    if s[4] == requests then return s, allowed end
    return {held, whole_was, part_was, requests, s[5]}, allowed
  end
  return {at, whole + s[5] - capacity, part, requests, s[5]}, allowed
end

function token_bucket.fresh(s, period)
  local q, r = muldiv(period, s[2], s[4])
  return s[1] + q + floor((r + s[3]) / s[4]) + 1
end

if general == 1 then
-- correct gives back hits taken at an earlier instant, when the deficit was that much. What the bucket has gained since then
-- and would not have gained without them, as it would have been full, is not given back.
function token_bucket.correct(s, requests, capacity, period, now, delta, at, whole, part)
  if delta > 0 then
    local next = token_bucket.take(s, requests, capacity, period, now, delta, true)
    return next
  end
  if not s then return s end
  if s[1] > now then now = s[1] end
  local w, p = token_bucket.settled(s, period, now)
  local excess, rest = 0, 0
  if now > at then
    local q, r = muldiv(now - at, s[4], period)
    excess, rest = q - whole, r - part
    if rest < 0 then excess, rest = excess - 1, rest + period end
    if excess < 0 then excess, rest = 0, 0 end
  end
  local back, back_part = -delta - excess, -rest
  if back_part < 0 then back, back_part = back - 1, back_part + period end
  if back < 0 then return s end
  w, p = w - back, p - back_part
  if p < 0 then w, p = w - 1, p + period end
  if w < 0 then w, p = 0, 0 end
  return (w > 0 or p > 0) and {now, w, p, s[4], s[5]}
end
end

algorithms[2] = token_bucket
end

if uses_counter == 1 then
local sliding_window_counter = {format = '<I7I5I5'} -- {instant of the last charge, count of its window, count of the one before}

function sliding_window_counter.windows(s, period, now)
  local current, previous = 0, 0
  if s then
    if s[1] > now then now = s[1] end
    local gone = floor(now / period) - floor(s[1] / period)
    if gone == 0 then current, previous = s[2], s[3] elseif gone == 1 then previous = s[2] end
  end
  return current, previous, now
end

function sliding_window_counter.state(current, previous, now)
  return (current > 0 or previous > 0) and {now, current, previous}
end

function sliding_window_counter.take(s, requests, _, period, now, hits, count_rejected)
  local current, previous
  current, previous, now = sliding_window_counter.windows(s, period, now)
  if hits < 0 then
    current = current + hits
    if current < 0 then
      previous, current = previous + current, 0
      if previous < 0 then previous = 0 end
    end
    return sliding_window_counter.state(current, previous, now), true
  end
  local carried, rest = 0, 0
  if previous > 0 then carried, rest = muldiv(period - (now - floor(now / period) * period), previous, period) end
  local room = requests - current - hits
  if room >= 0 and (carried < room or carried == room and rest == 0) then
    if hits == 0 then return s, true end
    return {now, current + hits, previous}, true
  end
  local used = current + carried
  if rest > 0 then used = used + 1 end
  if count_rejected and hits > 0 and used < 2 * requests then
    if hits > 2 * requests - used then hits = 2 * requests - used end
    return {now, current + hits, previous}, false
  end
  return s, false
end

function sliding_window_counter.fresh(s, period)
  return (floor(s[1] / period) + (s[2] > 0 and 2 or 1)) * period
end

if general == 1 then
function sliding_window_counter.correct(s, requests, _, period, now, delta, at)
  local current, previous
  current, previous, now = sliding_window_counter.windows(s, period, now)
  local gone = floor(now / period) - floor(at / period)
  if gone == 0 then
    current = current + delta
    if current < 0 then current = 0 end
    if delta > 0 and current > 2 * requests then current = 2 * requests end
  elseif gone == 1 then
    previous = previous + delta
    if previous < 0 then previous = 0 end
    if delta > 0 and previous > 2 * requests then previous = 2 * requests end
  else
    return s
  end
  return sliding_window_counter.state(current, previous, now)
end
end

algorithms[4] = sliding_window_counter
end

if uses_integer == 1 then
-- {instant of the last charge, how long before it the refill mark lies in microseconds, and the rest in nanoseconds, deficit,
-- requests}
local token_bucket_integer = {format = '<I7I7I2I5I4'}

-- settled returns deficit, instant and mark after a refill. What is given is changed to the state of the same fields.
function token_bucket_integer.settled(last, since, since_ns, deficit, rate, period, now)
  if deficit == 0 then return 0, now, 0, 0 end
  if now < last then now = last end
  if rate == 0 then return deficit, now, now - last + since, since_ns end
  since = now - last + since
  local refill, rest = muldiv(since, rate, period)
  refill = refill + floor((rest + floor(since_ns * rate / 1000)) / period)
  if refill >= deficit then return 0, now, 0, 0 end
  if refill > 0 then
    local us, left = muldiv(period, refill, rate)
    since, since_ns = since - us, since_ns - floor(left * 1000 / rate)
    if since_ns < 0 then since, since_ns = since - 1, since_ns + 1000 end
  end
  return deficit - refill, now, since, since_ns
end

function token_bucket_integer.take(s, requests, _, period, now, hits, count_rejected)
  local deficit, last, since, since_ns = 0, now, 0, 0
  if s then
    deficit, last, since, since_ns = token_bucket_integer.settled(s[1], s[2], s[3], s[4], s[5], period, now)
    if deficit > 0 and s[5] ~= requests then
      since, since_ns = 0, 0
      deficit = deficit + requests - s[5]
      if deficit < 0 then deficit = 0 end
      if deficit > 2 * requests then deficit = 2 * requests end
    end
  end
  local carried = deficit > 0 and {last, since, since_ns, deficit, requests}
  deficit, last, since, since_ns = token_bucket_integer.settled(last, since, since_ns, deficit, requests, period, now)
  local allowed, taken = true, false
  if hits < 0 then
    deficit, taken = deficit + hits, true
    if deficit < 0 then deficit = 0 end
  elseif deficit + hits <= requests then
    deficit, taken = deficit + hits, hits > 0
  elseif hits > 0 and requests == 0 then
    return carried, false
  else
    allowed = false
    if count_rejected and hits > 0 then
      deficit, taken = deficit + hits, true
      if deficit > 2 * requests then deficit = 2 * requests end
    end
  end
  if taken then return deficit > 0 and {last, since, since_ns, deficit, requests}, allowed end
  if s and carried and s[4] == carried[4] and s[5] == requests and s[1] - s[2] == last - carried[2] and s[3] == carried[3] then
    return s, allowed -- the same mark and deficit, seen later
  end
  return carried, allowed
end

function token_bucket_integer.fresh(s, period)
  return s[1] + muldiv(period, s[4], s[5]) + 2
end

if general == 1 then
function token_bucket_integer.correct(s, requests, _, period, now, delta, at, whole)
  if delta > 0 then
    local next = token_bucket_integer.take(s, requests, requests, period, now, delta, true)
    return next
  end
  if not s then return s end
  local deficit, last, since, since_ns = token_bucket_integer.settled(s[1], s[2], s[3], s[4], s[5], period, now)
  local back = -delta
  if last > at then
    local gained = muldiv(last - at, s[5], period) + 1
    if gained > whole then back = back - (gained - whole) end
  end
  if back > 0 then deficit = deficit - back end
  return deficit > 0 and {last, since, since_ns, deficit, s[5]}
end
end

algorithms[5] = token_bucket_integer
end

-- Those of sliding_window_log are a list: I7 instant and I5 hits of each entry, the newest last, and behind them I7 instant of
-- the last charge and I5 hits of all entries. A state is what is to be done to it: {hits added, hits given back, charged}.
local log = uses_log == 1 and {} or nil
if log then
local ENTRY, CHUNK = '<I7I5', 32

-- open returns what is known of the log: its length, its hits, the instant, how many entries have expired, the hits of the others.
function log.open(key, period, now)
  local tail = redis.call('LINDEX', key, -1)
  local g = {key = key, period = period, now = now, len = 0, hits = 0, first = 0, live = 0, head = {}}
  if not tail then return g end
  local last
  last, g.hits = unpack(ENTRY, tail)
  if last > now then g.now = last end
  g.len = redis.call('LLEN', key) - 1
  g.live = g.hits
  while g.first < g.len do
    local at, hits = log.oldest(g, g.first)
    if g.now - at < period then break end
    g.first, g.live = g.first + 1, g.live - hits
  end
  return g
end

-- oldest returns entry i, counted from the oldest, 0.
function log.oldest(g, i)
  local e = g.head[i]
  if not e then
    local chunk = redis.call('LRANGE', g.key, i, i + CHUNK - 1)
    for n = 1, #chunk do g.head[i + n - 1] = chunk[n] end
    e = chunk[1]
  end
  local at, hits = unpack(ENTRY, e)
  return at, hits
end

-- newest_left returns the instant of the newest entry of which something is left when that many hits are given back, nil if none.
function log.newest_left(g, back)
  for i = g.len - 1, 0, -1 do
    local at, hits = unpack(ENTRY, redis.call('LINDEX', g.key, i))
    if back < hits then return at end
    back = back - hits
  end
end

function log.take(s, requests, _, _, _, hits, count_rejected, g)
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
  local remaining, retry, reset = 0, 0, 0
  if used < requests then remaining = requests - used end
  if used > 0 then
    if added > 0 then
      reset = g.period
    else
      local at = log.newest_left(g, refunded)
      if at then reset = g.period - (g.now - at) end
    end
  end
  if not allowed then
    if hits > requests then
      retry = reset > 0 and reset or g.period
    else
      retry = g.period
      local need = used + hits - requests
      if need <= used - added then
        for i = g.first, g.len - 1 do
          local at, n = log.oldest(g, i)
          if need <= n then
            retry = g.period - (g.now - at)
            break
          end
          need = need - n
        end
      end
    end
  end
  return {added, refunded, charged}, allowed, remaining, retry, reset
end

if general == 1 then
-- correct takes hits of an earlier instant out of the log.
function log.correct(g, s, delta, at)
  for i = g.len - 1, 0, -1 do
    local when, hits = unpack(ENTRY, redis.call('LINDEX', g.key, i))
    if when < at then break end
    if when == at then
      local back = math.min(hits, -delta)
      g.hits, g.live = g.hits - back, g.live - back
      if hits > back then
        redis.call('LSET', g.key, i, pack(ENTRY, when, hits - back))
        redis.call('LSET', g.key, -1, pack(ENTRY, g.now, g.hits))
      elseif g.len == 1 then
        redis.call('DEL', g.key)
        g.len = 0
      else
        redis.call('LSET', g.key, i, '')
        redis.call('LREM', g.key, -1, '')
        redis.call('LSET', g.key, -1, pack(ENTRY, g.now, g.hits))
        g.len = g.len - 1
      end
      g.head = {}
      break
    end
  end
  return s
end
end

-- apply brings what is to be done into the list and returns from when on the key is as if never used.
function log.apply(g, s)
  local added, refunded = s[1], s[2]
  if g.len > 0 then
    redis.call('RPOP', g.key)
    if g.first == g.len then
      redis.call('DEL', g.key)
    elseif g.first > 0 then
      redis.call('LTRIM', g.key, g.first, -1)
    end
    g.hits, g.len = g.live, g.len - g.first
  end
  local newest, newest_hits
  while g.len > 0 do
    newest, newest_hits = unpack(ENTRY, redis.call('LINDEX', g.key, -1))
    if refunded == 0 then break end
    local back = math.min(newest_hits, refunded)
    refunded, g.hits = refunded - back, g.hits - back
    if back < newest_hits then
      newest_hits = newest_hits - back
      redis.call('LSET', g.key, -1, pack(ENTRY, newest, newest_hits))
      break
    end
    redis.call('RPOP', g.key)
    g.len = g.len - 1
  end
  if added > 0 then
    g.hits = g.hits + added
    if g.len > 0 and newest == g.now then
      redis.call('LSET', g.key, -1, pack(ENTRY, newest, newest_hits + added))
    else
      redis.call('RPUSH', g.key, pack(ENTRY, g.now, added))
      g.len, newest = g.len + 1, g.now
    end
  end
  if g.len == 0 then return nil end
  redis.call('RPUSH', g.key, pack(ENTRY, g.now, g.hits))
  return newest + g.period
end
algorithms[LOG] = log

end

-- What follows is the transaction.

local time, later = redis.call('TIME'), 0 -- later: milliseconds from the instants of states to those of expiry
local server = time[1] * 1000000 + time[2]
if now == 0 then
  now = server
else
  later = floor((server - now) / 1000) + 3600000
end
if deadline > 0 and now >= deadline then return pack('<I1I8', 1, now) end

local CHARGE, CORRECTION, DECISION = '<I4I1I1I4I4I7i5', '<I8I5I7i5I1', '<I1I4I8I8I5'
local answer = {} -- for each transaction
local before, state, kept_by, period_of = {}, {}, {}, {} -- by key
local several, correct

if general == 1 then
-- load makes a key's state known.
local function load(key, algorithm, period)
  local by = algorithms[algorithm]
  kept_by[key], period_of[key] = by, period
  if by == log then
    before[key] = log.open(KEYS[key], period, now)
    state[key] = {0, 0, false}
    return
  end
  local raw = redis.call('GET', KEYS[key])
  before[key] = raw or ''
  state[key] = raw and {unpack(by.format, raw)}
end

-- take takes hits from a key's state and returns the next one, whether they are allowed and, of a log, the decision.
local function take(key, requests, capacity, hits, count_rejected)
  return kept_by[key].take(state[key], requests, capacity, period_of[key], now, hits, count_rejected, before[key])
end

-- admitted gives the verdict on a transaction, as Admitted in package store does. Modes: 0 enforce, 1 quota, 2 shadow, 3 both.
local function admitted(n, flags, allowed)
  local quotas, over, denied = 0, 0, false
  for i = 1, n do
    local mode = flags[i] % 4
    if mode == 0 then
      if not allowed[i] then return false end
    elseif mode == 3 then
      quotas = quotas + 1
    elseif mode == 1 then
      if not (i > 1 and flags[i] % 16 >= 8 and flags[i - 1] % 4 == 1) then quotas, denied = quotas + 1, false end
      if not allowed[i] and not denied then over, denied = over + 1, true end
    end
  end
  return quotas == 0 or over < quotas
end

-- several applies a transaction of any number of charges.
function several(kind, n)
  local keys, flags, requests, capacities, hits = {}, {}, {}, {}, {}
  local allowed, decisions, undo, net = {}, {}, {}, {}
  for i = 1, n do
    local key, algorithm, period
    key, algorithm, flags[i], requests[i], capacities[i], period, hits[i], position = unpack(CHARGE, request, position)
    keys[i] = key
    if before[key] == nil then load(key, algorithm, period) end
    if undo[key] == nil then undo[key], net[key] = state[key], 0 end
    local count_rejected = flags[i] % 8 >= 4
    local next, ok, remaining, retry, reset = take(key, requests[i], capacities[i], hits[i], count_rejected)
    state[key], allowed[i] = next, ok
    if algorithm == LOG then decisions[i] = {ok and 1 or 0, remaining, retry, reset, 0} end
    if ok or count_rejected then net[key] = net[key] + hits[i] end
  end
  local passed = admitted(n, flags, allowed)
  if kind == RESERVE then
    -- What is given back waits for the verdict on the whole request.
    local added = {}
    for key, was in pairs(undo) do
      if kept_by[key] == log then
        local is = state[key]
        added[key] = math.max(0, is[1] - was[1] - (is[2] - was[2]))
        state[key] = {was[1] + added[key], was[2], was[3] or added[key] > 0}
      elseif net[key] < 0 then
        state[key] = was
      end
    end
    for i = 1, n do
      if decisions[i] then decisions[i][5] = added[keys[i]] end
    end
  elseif not passed then
    for key, was in pairs(undo) do state[key] = was end
    for i = 1, n do
      local count_rejected = flags[i] % 8 >= 4
      local next, ok, remaining, retry, reset =
        take(keys[i], requests[i], capacities[i], count_rejected and hits[i] or 0, count_rejected)
      state[keys[i]] = next
      if decisions[i] and allowed[i] then
        if not count_rejected then ok, retry = true, 0 end
        decisions[i] = {ok and 1 or 0, remaining, retry, reset, 0}
      end
    end
  end
  answer[#answer + 1] = pack('<I4', passed and 1 or 0)
  for i = 1, n do
    local d = decisions[i]
    if d then answer[#answer + 1] = pack(DECISION, d[1], d[2], d[3], d[4], d[5]) end
  end
end

-- correct sets right what a reservation has made of keys, or what it was not told of. Where nobody has charged the key since,
-- it is put back as it was and charged with what should have been; else it is given or taken the difference. A log has
-- instants, so that what was added to it can always be taken out again.
function correct(n)
  answer[#answer + 1] = pack('<I4', 1)
  local charges, again = {}, {}
  for i = 1, n do
    local key, algorithm, flags, requests, capacity, period, hits
    key, algorithm, flags, requests, capacity, period, hits, position = unpack(CHARGE, request, position)
    charges[i] = {key, requests, capacity, hits, flags % 8 >= 4, algorithm}
    if flags >= 16 then
      local at, whole, part, difference, length, after, was
      at, whole, part, difference, length, position = unpack(CORRECTION, request, position)
      after, position = request:sub(position, position + length - 1), position + length
      length, position = unpack('<I1', request, position)
      was, position = request:sub(position, position + length - 1), position + length
      local first = before[key] == nil
      if first then load(key, algorithm, period) end
      if algorithm == LOG then
        again[key] = true
        if difference ~= 0 then state[key] = log.correct(before[key], state[key], difference, at) end
      elseif first and before[key] == after then
        again[key] = true
        state[key] = was ~= '' and {unpack(algorithms[algorithm].format, was)}
      elseif difference ~= 0 then
        state[key] = kept_by[key].correct(state[key], requests, capacity, period, now, difference, at, whole, part)
      end
    end
  end
  for i = 1, n do
    local c = charges[i]
    local key, allowed, remaining, retry, reset = c[1], false, 0, 0, 0
    if again[key] then state[key], allowed, remaining, retry, reset = take(key, c[2], c[3], c[4], c[5]) end
    if c[6] == LOG then answer[#answer + 1] = pack(DECISION, allowed and 1 or 0, remaining, retry, reset, 0) end
  end
end

end

while position <= #request do
  local kind, times, n
  kind, times, n, position = unpack('<I1I4I4', request, position)
  if kind == CORRECT then
    correct(n)
  elseif n > 1 then
    several(kind, n)
  else -- as several, but repeated and with less to remember
    local key, algorithm, flags, requests, capacity, period, hits
    key, algorithm, flags, requests, capacity, period, hits, position = unpack(CHARGE, request, position)
    local by, is, was = algorithms[algorithm], state[key], before[key]
    if was == nil then
      if by == log then
        was, is = log.open(KEYS[key], period, now), {0, 0, false}
      else
        was = redis.call('GET', KEYS[key])
        is = was and {unpack(by.format, was)}
      end
      before[key], kept_by[key], period_of[key] = was or '', by, period
    end
    local count_rejected, enforced, passed = flags % 8 >= 4, flags % 4 < 2, 0
    local keep = kind == TAKE or kind == RESERVE and hits >= 0
    for _ = 1, times do
      local next, allowed, remaining, retry, reset = by.take(is, requests, capacity, period, now, hits, count_rejected, was)
      if allowed or not enforced then passed = passed + 1 end
      if by == log then
        local added = kind == RESERVE and keep and next[1] - is[1] or 0
        answer[#answer + 1] = pack('<I4' .. DECISION, passed, allowed and 1 or 0, remaining, retry, reset, added)
      elseif keep and next == is and not allowed then -- and so with the rest of them
        if not enforced then passed = times end
        break
      end
      if keep then is = next end
    end
    state[key] = is
    if by ~= log then answer[#answer + 1] = pack('<I4', passed) end
  end
end

local states = {}
for key = 1, #KEYS do
  local by, was, is = kept_by[key], before[key], state[key]
  if not by then
    states[key] = '\0' -- nothing to be set right
  elseif by == log then
    states[key] = '\0'
    local fresh = is[3] and log.apply(was, is)
    if fresh then redis.call('PEXPIREAT', KEYS[key], floor((fresh + 999) / 1000) + later) end
  else
    states[key] = pack('<I1', #was) .. was
    if is then
      local raw = pack(by.format, is[1], is[2], is[3], is[4], is[5])
      if raw ~= was then
        redis.call('SET', KEYS[key], raw, 'PXAT', floor((by.fresh(is, period_of[key]) + 999) / 1000) + later)
      end
    elseif was ~= '' then
      redis.call('DEL', KEYS[key])
    end
  end
end
return pack('<I1I8', 0, now) .. table.concat(states) .. table.concat(answer)
