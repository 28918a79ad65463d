-- A heartbeat of one process. ARGV has a text of 8 bytes that names the process, eleven numbers,
-- and the name of an ended process or "". The process goes on for the ended one, which could not
-- leave.
--   The instant in Unix microseconds, or 0 for the time of the server.
--   For how long a process is known after its last beat, in microseconds.
--   1 if the process has hits or holders to tell.
--   An instant: the answer counts the other processes that have not beaten since, or have something to tell. 0: the answer has 0.
--   1 if the process leaves.
--   The deadline, or 0: from this instant on nobody waits for the answer, and the beat does not count.
--   The load of the process. 0: it has just started, and counts as the mean of the others.
--   The number of the beat, and of the last beat with an answer. 0: the process has no answer, or may be forgotten.
--   The begin and the end of the arc that the process uses; 0 and 0: it has no arc.
-- The answer has the instant, the number of processes, 1 if the process was known before, and the
-- count. Then it has the begin and the end of an arc, and 1 if the process should have a longer
-- arc. -1: the beat does not count.
--
-- The value of KEYS[1] begins with two instants (I7). From the first one on all known processes
-- have records. Until the second one arcs move. A record has the name (8 bytes), the instant of the
-- last beat (I7), and 1 if the process has something to tell (I1). Then it has the load, two arcs,
-- and the number of the beat. An arc is begin and end; all these are I4. The process uses the first
-- arc, and the second one is of its last answer.
--
-- Arcs never overlap. A process tells the arc that it uses, waits for the answer or gives it up,
-- and beats again only then. So it uses one of the two arcs of its record, and no other process
-- gets a part of these. An arc grows only after others have told that they use less. A value that
-- is lost, or older than an answer, lacks arcs. So then no arc grows until all processes have told
-- theirs.
--
-- Arcs stand still while their lengths are nearly right. If an arc is too short, and has no free
-- neighbour, all arcs move for some beats. Then they fill the circle, in their order.
if redis.replicate_commands then redis.replicate_commands() end -- Redis before version 7 needs this call to write after TIME

local HEAD, SIZE, RECORD, CIRCLE = 14, 40, '<c8I7I1I4I4I4I4I4I4', 16777216
local LOAD, ARCS, NUMBER = 8, 20, 36 -- where the fields from the beat on, the arcs and the number are in a record
local IDLE = 16 -- a process has that part of the mean load at least
local STILL = 8 -- a length that differs by that part at most is nearly right, and a load that differs from the mean so is the mean
local MUCH, GAP = 1 / 4, 1 / 100 -- arcs move if one lacks MUCH of its length. After a rest they move if one lacks GAP, or GAP is free
local KEPT = 4 -- a process that has to move keeps that part of its length at least
local MANY = 16 -- so many processes rest for the time for which a process is known, more rest longer
local read = struct.unpack
local name, former, n = ARGV[1], ARGV[13], {}
for i = 2, 12 do n[i - 1] = tonumber(ARGV[i]) end
local now, known, tells, since, leaves, deadline, load, number, answered, from, to = unpack(n)
leaves = leaves == 1
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if to == 0 then from, to = CIRCLE, CIRCLE end

local raw, whole, moving, mine, ended = redis.call('GET', KEYS[1]), 0, 0, nil, nil
local function find(who)
  local at = raw:find(who, HEAD + 1, true)
  while at and (at - HEAD - 1) % SIZE > 0 do at = raw:find(who, at + 1, true) end
  return at
end
if raw and #raw % SIZE == HEAD then -- else it is not a value of ours
  whole, moving = read('<I7I7', raw)
  mine, ended = find(name), #former == 8 and find(former)
else
  raw = ''
end
local last = mine and read('<I4', raw, mine + NUMBER) or 0
local beats = not leaves and (deadline == 0 or now < deadline) and (not mine or number > last)

-- out has the new value in pieces. here is the index of the record of this process, and place the
-- index of the process among all.
local out, run, here, place, others, loads, begins = { '' }, HEAD + 1, nil, nil, {}, {}, {}
local used, sum, heavy, untold, latest = 0, 0, 0, 0, 0 -- heavy: processes whose load is known
local function cut(stop)
  if stop > run then out[#out + 1] = raw:sub(run, stop - 1) end
  run = stop + SIZE
end
local function weigh(its, begin, stop)
  loads[#loads + 1], begins[#begins + 1], used, sum = its, begin, used + stop - begin, sum + its
  if its > 0 then heavy = heavy + 1 end
end
local function enter(at)
  cut(at)
  here, place = #out + 1, #loads + 1
  out[here] = ''
  weigh(load, from, to)
end
for at = run, #raw, SIZE do
  local beat, owes, its, begin, stop, answer, answers = read('<I7I1I4I4I4I4I4', raw, at + LOAD)
  if begin == stop and answers > answer then begin, stop = answer, answers end -- no arc is in use yet
  if beat > latest then latest = beat end
  if at == mine and beats then
    enter(at)
  elseif not (at == mine and leaves or at == ended and beats) and now - beat < known and beat - now < known then
    others[#others + 1] = at
    weigh(its, begin, stop)
    if since > 0 and at ~= mine and (beat < since or owes == 1) then untold = untold + 1 end
  else
    cut(at)
  end
end
if beats and not here then
  enter(#raw + 1)
else
  cut(#raw + 1)
end

-- free returns the longest part of an arc that no other process has.
local function free(lo, hi)
  local taken = {}
  for i = 1, #others do
    local a, b, c, d = read('<I4I4I4I4', raw, others[i] + ARCS)
    if a < hi and b > lo then taken[#taken + 1] = a * CIRCLE * 2 + b end
    if c < hi and d > lo then taken[#taken + 1] = c * CIRCLE * 2 + d end
  end
  table.sort(taken)
  taken[#taken + 1] = hi * CIRCLE * 2 + hi
  local begin, stop, at = lo, lo, lo
  for i = 1, #taken do
    local b = taken[i] % (CIRCLE * 2)
    local a = (taken[i] - b) / (CIRCLE * 2)
    if a - at > stop - begin then begin, stop = at, a end
    at = math.max(at, b)
  end
  return begin, stop
end

-- should returns the arc of this process when arcs have moved. The order of arcs stays. A process
-- without an arc comes where most is free.
local function should()
  if from == to then
    local a, b = free(0, CIRCLE)
    if b > a then begins[place] = a end
  end
  local from = begins[place]
  local mean, before, total = math.max(1, math.floor(sum / math.max(1, heavy))), 0, 0
  local least, near = math.ceil(mean / IDLE), mean / STILL
  local function weight(its)
    if its == 0 or its - mean <= near and mean - its <= near then return mean end
    return its > least and its or least
  end
  for i = 1, #loads do
    local its = weight(loads[i])
    total = total + its
    if begins[i] < from or begins[i] == from and i < place then before = before + its end
  end
  return math.floor(before * CIRCLE / total), math.floor((before + weight(load)) * CIRCLE / total)
end

-- still returns the arc of this process while arcs stand still. An arc that is too short gets the
-- free parts beside it. A new one is anywhere.
local function still(length)
  local is, most = to - from, math.floor(length * (STILL + 1) / STILL)
  if is > most then return from, from + most end
  if is >= length then return from, to end
  if is == 0 then
    local a, b = free(0, CIRCLE)
    return a, math.min(b, a + length)
  end
  local a, b = free(math.max(0, to - most), math.min(CIRCLE, from + most))
  a = math.max(a, math.min(from, b - most))
  return a, math.min(b, a + most)
end

-- move returns the arc of this process while arcs move to their places.
local function move(lo, hi)
  if from <= lo and hi <= to then return lo, hi end
  local begin, stop = free(lo, hi)
  if stop - begin < hi - lo then
    local a, b = free(from, to)
    b = math.min(b, a + math.ceil((hi - lo) / KEPT))
    if b - a > stop - begin then return a, b end
  end
  return begin, stop
end

local begin, stop, waits = -1, -1, false
if beats then
  local settled, moved = now + math.floor(known / 2), now + math.floor(known / 3)
  local lost = answered > last or #raw == 0 and to > from
  local stepped = #raw > 0 and math.abs(now - latest) > known / 2 -- or all processes were away
  if lost or stepped then
    whole = settled
  elseif #raw == 0 then
    whole = now + math.floor(known / 6) -- all processes are new, or the others have to beat yet
  end
  whole, moving = math.min(whole, settled), math.min(moving, moved)
  if whole > now then
    begin, stop = free(from, to)
    waits = from == to
  else
    local a, b, c, d = CIRCLE, CIRCLE, CIRCLE, CIRCLE -- new, or forgotten
    if mine then a, b, c, d = read('<I4I4I4I4', raw, mine + ARCS) end
    if not (from == a and to == b or from == c and to == d) then -- others may have a part of the arc
      from, to = CIRCLE, CIRCLE
      begins[place] = from
    end
    local lo, hi = should()
    if moving <= now then
      begin, stop = still(hi - lo)
      local short, gap = 1 - (stop - begin) / (hi - lo), 1 - used / CIRCLE
      if short > MUCH or now - moving > known * math.max(1, #loads / MANY) and (short > GAP or gap > GAP) then moving = moved end
    end
    if moving > now then
      begin, stop = move(lo, hi)
      waits = stop - begin < hi - lo
    end
    waits = waits or begin == stop
  end
  if begin == stop then begin, stop = 0, 0 end
  out[here] = struct.pack(RECORD, name, now, tells, load, from, to, begin, stop, number)
end
if #loads == 0 then
  redis.call('DEL', KEYS[1])
else
  out[1] = struct.pack('<I7I7', whole, moving)
  redis.call('SET', KEYS[1], table.concat(out), 'PX', math.ceil(known / 1000))
end
return {now, #loads, mine and 1 or 0, untold, begin, stop, waits and 1 or 0}
