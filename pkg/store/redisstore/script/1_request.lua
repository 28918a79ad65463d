-- Applies rate limit transactions to the states in KEYS, all at one instant, and returns the states as they were before.
--
-- ARGV[1] is binary, little-endian:
--   I8 instant in Unix microseconds, 0 for the server's own time; only tests give one
--   I8 instant from which nothing is to be done, as nobody waits for the answer any more; 0 for never
--   I1 for each of the five algorithms, in the order of their numbers, and for counters, 6: 1 if there are charges of it, else 0
--   I1 1 if there are transactions of several charges or of kind 3, else 0
--   then transactions: I1 kind, I4 repeat, I4 number of charges, and for each charge
--     I4 key (index into KEYS), I1 algorithm, I1 flags, I4 requests, I4 capacity (of a counter the seconds that it lives on
--     after its period), I7 period in microseconds, i5 hits
--   flags: 1 and 2 the mode, 4 count rejected hits, 8 of the same rule as the charge before, 16 a correction follows:
--     I8 instant, I5 and I7 deficit before (whole hits and 1/period hits), i5 hits, I1 length and state as it was after,
--     I1 length and state before
--
-- The answer is binary too: I1 0 (1: too late, and nothing done), I8 instant, for each key I1 length and the state before
-- (none for those of sliding_window_log), then for each transaction I4 times admitted and for each of its charges of
-- sliding_window_log I1 allowed, I4 remaining, I8 retry and I8 reset in microseconds, and of kind 1 how many hits are in the
-- key's log for the transaction (I5) and at which instant (I7). Those do not repeat.
--
-- Every number is a whole one below 2^53, where Lua's are exact; products beyond that go through muldiv.

if redis.replicate_commands then redis.replicate_commands() end -- needed before Redis 7, where it is what always happens

local floor, pack, unpack = math.floor, struct.pack, struct.unpack
local EXACT = 9007199254740992 -- 2^53
local TAKE, RESERVE, PEEK, CORRECT = 0, 1, 2, 3 -- kinds of transactions
local LOG = 3 -- the number of sliding_window_log

local request = ARGV[1]
local now, deadline, uses_window, uses_bucket, uses_log, uses_sliding, uses_integer, uses_counter, general, position =
  unpack('<I8I8I1I1I1I1I1I1I1', request)

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

-- read returns the state that raw is.
local function read(by, raw)
  if by.read then return by.read(raw) end
  local state = {unpack(by.format, raw)}
  if state[#state] ~= #raw + 1 then error('data string too long') end
  return state
end

-- What follows are the algorithms; only those are made that are used, as that is much of the cost of a short script. A state is
-- a table that is never changed, or false for a key never used. take returns the next state and whether the hits are allowed,
-- which are those of TakeAs in package algorithms; fresh the instant from which a state is as if never used; correct the state
-- after more hits, or less, at an earlier instant.
local algorithms = {}
