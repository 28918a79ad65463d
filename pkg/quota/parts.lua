-- The parts that processes hold of limits. KEYS[1] is the clock of all records, and each further
-- key the record of a limit. ARGV[1] is a text of 8 bytes that names the process. ARGV[2] is the
-- instant in Unix milliseconds, or 0 for the time of the server. Each further value is a claim:
--   The number of the call (I4). A call that comes after a later one has no effect.
--   The rate and the burst that the clients of the process may still use (I4, I4).
--   The demand (I4), and the number of clients (I2). 0: the process needs no part.
--   The burst of one token, the turn in milliseconds, and the milliseconds in which the rate fills the burst (I4, I4, I6).
-- Rates, bursts and demands are in units of the limit: ONE is the whole. The answer has a text for
-- each claim, or "" if the call is late. The text has the rate and the burst of the process from now
-- on (I4, I4). Then come the tokens with these (I4), and the number of processes in the record (I2).
--
-- A record begins with two instants: of the last write, and from which on parts may grow (I6, I6).
-- Then come the tokens of the burst that nobody holds (I4), and a member for each process. A member
-- has the part of the last claim, or more: an answer may be lost. A claim has all that clients of the
-- process may still use. So the parts in use are at most ONE.
--
-- Instants are of a clock that advances only while processes call. So nobody is taken for dead
-- because Redis was away. After a start of Redis, and when a replica takes over, a record may be
-- older than the last answers. Then no part grows until all processes have told theirs, or are dead.
if redis.replicate_commands then redis.replicate_commands() end -- Redis before version 7 needs this call to write after TIME

local ONE = 720720000
local DEAD = 40500 -- a process that has not called for so long has no client that uses an assignment
local STEP = 2000 -- by which the clock advances at most
local WAITS = 10000 -- a process waits for its turn for so long after a call
local HEAD, SIZE, MEMBER = 16, 38, '<c8I6I4I4I4I4I2I6'
local floor, min, max = math.floor, math.min, math.max

local me, now = ARGV[1], tonumber(ARGV[2])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end
local run = redis.call('INFO', 'server'):match('run_id:(%w+)')
local raw, last, clock, whole, seen = redis.call('GET', KEYS[1]), now, now, 0, ''
if raw and #raw >= 18 then
  last, clock, whole = struct.unpack('<I6I6I6', raw)
  seen = raw:sub(19)
end
clock = clock + max(0, min(now - last, STEP))
if seen ~= run then whole = clock + DEAD end
redis.call('SET', KEYS[1], struct.pack('<I6I6I6', now, clock, whole) .. run, 'PX', 86400000)

-- read returns the record of a limit: the instants, the tokens, and the members that are not dead.
local function read(key, fills)
  local raw, all, mine = redis.call('GET', key), {}, nil
  if not raw or #raw < HEAD or (#raw - HEAD) % SIZE > 0 then return 0, clock < whole and 0 or ONE, all end
  local at, still, level = struct.unpack('<I6I6I4', raw)
  local free = ONE
  for from = HEAD + 1, #raw, SIZE do
    local m = { raw = raw:sub(from, from + SIZE - 1) }
    m.name, m.beat, m.number, m.rate, m.burst, m.demand, m.weight, m.since = struct.unpack(MEMBER, raw, from)
    free = free - m.rate
    if m.name == me then mine = m end
    if m == mine or clock - m.beat < DEAD then all[#all + 1] = m end
  end
  local from = max(at, whole, still)
  if at < from then level = 0 end -- others may have these tokens
  level = level + floor(max(0, min(clock - from, 4000000)) * max(0, free) / fills)
  return still, level, all, mine
end

-- seated reports whether a process has a token of a limit of fewer tokens than processes, or gets
-- one. The tokens go from the process that has had one for longest to the one that waits for longest.
local function seated(all, mine, grain, turn, bursts)
  local first, oldest
  local function before(a, b) return not b or a.since < b.since or a.since == b.since and a.name < b.name end
  for _, m in ipairs(all) do
    if m.weight > 0 and m.burst < grain and m.demand > 0 and clock - m.beat < WAITS and before(m, first) then first = m end
    if m.weight > 0 and m.burst >= grain and (m.demand == 0 or clock - m.since >= turn) and before(m, oldest) then oldest = m end
  end
  local free = bursts + grain <= ONE
  if mine.burst >= grain then return not first or free or oldest ~= mine end
  return free and first == mine
end

-- share returns the rate of a process: max-min of the demands, by the number of clients. The rest
-- goes half by that number, half by demand.
local function share(sharers, mine, rate)
  table.sort(sharers, function(a, b)
    local one, two = a.demand * b.weight, b.demand * a.weight
    return one < two or one == two and a.name < b.name
  end)
  local weights, left, sum, own = 0, rate, 0, 0
  for _, m in ipairs(sharers) do weights = weights + m.weight end
  local heavy = weights
  for _, m in ipairs(sharers) do
    local part = min(m.demand, floor(left * m.weight / heavy))
    left, heavy, sum = left - part, heavy - m.weight, sum + part
    if m == mine then own = part end
  end
  local by = mine.weight / weights
  return floor(max(own + left / 2 * by + left / 2 * (sum > 0 and own / sum or by), rate * by / 32))
end

local function divide(key, claim)
  local number, rate, burst, demand, weight, grain, turn, fills = struct.unpack('<I4I4I4I4I2I4I4I6', claim)
  local still, level, all, mine = read(key, fills)
  if mine and number <= mine.number then return '' end
  if not mine then
    mine = { name = me, burst = 0, since = clock }
    all[#all + 1] = mine
    if rate + burst > 0 then still, level = clock + DEAD, 0 end -- the record is lost, or the process was taken for dead
  end
  if mine.burst >= grain and burst < grain then mine.since = clock end
  mine.beat, mine.number, mine.rate, mine.burst, mine.demand, mine.weight = clock, number, rate, burst, demand, weight

  local rates, bursts, n, weights, goneBurst = 0, 0, 0, 0, 0
  for _, m in ipairs(all) do
    rates, bursts, weights = rates + m.rate, bursts + m.burst, weights + m.weight
    if m.weight > 0 then n = n + 1 else goneBurst = goneBurst + m.burst end
  end
  local few, spareRate, spareBurst = floor(ONE / grain) < n, 0, 0
  if grain * 16 <= ONE then spareRate, spareBurst = ONE / 240, ONE / 8 end -- for a process that comes

  local toRate, toBurst = 0, 0
  if weight > 0 and (not few or seated(all, mine, grain, turn, bursts)) then
    local sharers, left = {}, ONE - spareRate
    for _, m in ipairs(all) do
      if m.weight > 0 and (not few or m == mine or m.burst >= grain) then sharers[#sharers + 1] = m else left = left - m.rate end
    end
    toRate, toBurst = share(sharers, mine, max(0, left)), grain
    if not few then toBurst = grain * (1 + max(0, math.ceil((floor((ONE - spareBurst - goneBurst) / grain) - n) * weight / weights))) end
  end

  local newRate, newBurst, tokens = min(rate, toRate), min(burst, toBurst), 0
  if clock >= whole and clock >= still then
    local freeRate, freeBurst = ONE - rates, ONE - bursts
    if rate > toRate / 2 then freeRate = freeRate - spareRate end
    if burst > toBurst / 2 then freeBurst = freeBurst - spareBurst end
    newRate = max(newRate, min(toRate, rate + freeRate))
    local more = min(toBurst, burst + freeBurst)
    newBurst = max(newBurst, more - more % grain)
    tokens = max(0, min(level, newBurst - burst))
  end
  if newBurst < grain then newRate = 0 end
  if burst < grain and newBurst >= grain then mine.since = clock end
  mine.rate, mine.burst = max(rate, newRate), max(burst, newBurst)
  level = max(0, min(level - tokens, ONE - bursts + burst - mine.burst))

  local out = { struct.pack('<I6I6I4', clock, still, level) }
  for _, m in ipairs(all) do
    if m ~= mine then
      out[#out + 1] = m.raw
    elseif weight + rate + burst > 0 then
      out[#out + 1] = struct.pack(MEMBER, me, clock, number, mine.rate, mine.burst, demand, weight, mine.since)
    end
  end
  redis.call('SET', key, table.concat(out), 'PX', 3600000 + fills)
  return struct.pack('<I4I4I4I2', newRate, newBurst, tokens, min(#out - 1, 65535))
end

local answers = {}
for i = 2, #KEYS do answers[i - 1] = divide(KEYS[i], ARGV[i + 1]) end
return answers
