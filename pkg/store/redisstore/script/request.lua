-- The script applies transactions to the states of KEYS at one instant, and returns the states as
-- they were before.
--
-- ARGV[1] is binary and little-endian.
--   I8 instant in Unix microseconds; 0 is the time of the server, and only tests give an instant.
--   I8 deadline: from this instant on no caller waits for the answer, and the script does nothing. 0 is never.
--   I1 a sum of flags: 1 if a transaction has several charges or action CORRECT, 2 if one with a holder is not lone.
--     4 if a holder ends, 8 if one begins, 16 if a transaction is lone (lone.lua), 32 in the script of seed.lua.
--   15 times I1: byte n is 1 if a charge has the algorithm number n. Number 0 stands for counters (counter.lua).
--   I1 1 if hits carry over (carry.lua).
--   Then the transactions: I1 action, plus HOLDS if a charge has a holder, I4 repeat, I4 number of charges, and the charges.
--   A charge: I4 key (index into KEYS), I1 algorithm, I1 flags, I7 requests, I4 capacity, I7 period in microseconds, i5 hits.
--     The capacity of counters is the seconds to live after the period.
--   Flags: 1 and 2 the mode, 4 count rejected hits, 8 same rule as the charge before, 16 a correction follows, 32 a holder follows.
--   A correction: I8 instant, and three values with a length of I1 each. correct in transactions.lua explains the values.
--   A holder: see records.lua.
--
-- The answer is binary.
--   I1 0; 1 if the deadline has passed, 2 if the windows of a calendar are of another time. I8 instant.
--   For each key I1 length and the value before. For lists the length is 0.
--   For each transaction I4 how often the transaction was admitted, and a DECISION for each charge of a list.
--   A DECISION: I1 allowed, I4 remaining, I8 retry and I8 reset in microseconds, I5 hits that a reservation put into the list, and I7
--     their instant. Transactions with lists do not repeat.
--
-- Every number is a whole number below 2^53, where Lua is exact. muldiv computes products beyond
-- that bound.
--
-- script.go adds lines before this file, which read the header, and wraps the file of each
-- algorithm. The file runs only if the request uses the algorithm, as making functions takes much
-- of the time of a short script. The file of an algorithm defines:
--   algorithm.take(s, requests, capacity, period, now, hits, count_rejected) returns the next state, and whether the hits are
--     allowed, as TakeAs in package algorithms. s is false for a key never used; take must not change the table s. count_rejected is
--     false, true, or OWE for hits that were spent already.
--   algorithm.idle(s, period) returns the instant from which the key is idle.
--   algorithm.correct(s, requests, capacity, period, now, difference, at, was) returns the state after a charge of the difference at
--     an earlier instant. Negative hits are given back; was is the state at that instant without these hits.
--   algorithm.merge(s, lost, period) returns a state that admits no more than either of two states of a key, or s if s does. Without
--     merge the state counts that is idle later.
--   algorithm.content(s, period, now, capacity) returns the used hits, rounded down, and the rest in 1/period hits. algorithm.bucket is true if
--     tokens miss that are used.
--   algorithm.windows is true if refunds only reach hits of the same window. algorithm.dated is true if correct gives hits back.
--   algorithm.own(s) returns the requests and the capacity of a state, for a bucket that hits come back to.
-- A state is a table of the numbers of a record (see AppendRecord in package algorithms). An
-- algorithm with a list also defines open and apply (sliding_window_log.lua). The algorithm of
-- slots is concurrency.lua. algorithm.back(s, period) is for states whose weight depends on the
-- place of the instant in a window. back makes the weight of this instant the weight of all.
-- algorithm.rewind(s, period, capacity) has the state go on from now by itself. For windows of a
-- calendar the capacity is its number (calendars.lua).

if redis.replicate_commands then redis.replicate_commands() end -- Redis before version 7 needs this call to write after TIME

local spread, floor, pack, unpack = unpack, math.floor, struct.pack, struct.unpack
local EXACT = 9007199254740992 -- 2^53
local OWE, OWED = 'owe', 17179869180 -- MaxOwed of package algorithms
local TAKE, RESERVE, PEEK, CORRECT, HOLDS, CARRY = 0, 1, 2, 3, 4, 8 -- actions
local SEED = 32 -- general, in the script of seed.lua
local request, position, algorithms = ARGV[1], 34, {}
local carrying = request:byte(33) == 1
local later = 0 -- milliseconds from the instants of states to instants of expiry

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

-- most returns how many used hits a denial may leave behind, under a limit with a capacity.
local function most(count_rejected, capacity) return count_rejected == OWE and OWED or 2 * capacity end

-- read returns the state in a value of Redis. With a period, a state that lies further than BACK
-- ahead goes on from now: the clock has gone back since.
local function read(by, raw, period, capacity)
  if by.read then return by.read(raw) end
  local state = {unpack(by.format, raw)}
  if state[#state] ~= #raw + 1 then error('data string too long') end
  if period and by.rewind then
    if capacity and state[1] - now > BACK then by.rewind(state, period, capacity) end
  elseif period and state[1] - now > BACK then
    if by.back then by.back(state, period) end
    state[1] = now
  end
  return state
end

local time = redis.call('TIME')
local server = time[1] * 1000000 + time[2]
if now == 0 then
  now = server
else
  later = floor((server - now) / 1000) + 3600000
end
if deadline > 0 and now >= deadline then return pack('<I1I8', 1, now) end

