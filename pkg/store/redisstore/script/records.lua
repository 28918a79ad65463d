-- A charge with a holder goes on with a HOLD:
--   I1 phase, plus RETURNS if the hits come back when the holder runs out. I4 record and I4 book: indexes into KEYS. I8 the time that a holder is known for, in microseconds.
--   I8 instant: of RELEASE, the begin that is undone; of another phase the instant at which it happened, 0 for now.
--   I8 start of the window of a counter, else 0.
--   I4 hits of a PAIR that begins; its own hits are the cost, if it ends.
--   16 bytes: the holder, for concurrency; else the first four are a name for a new book.
-- In the answer a WAS follows the DECISION of such a charge. A WAS is the holder as the charge
-- found it.
--   I1 status, plus PAIRED of a PAIR that ends. I4 hits. I8 instant of the begin, I8 instant from which the holder is not known.
--   I8 instant of this charge.
--
-- A holder of a rate limit has a record.
--   Four bytes that name its book, I1 status, I4 hits; of a holder that has ended, the hits of its end.
--   I7 instant of the begin, I7 instant from which the holder is not known.
-- A rate limit has a book.
--   Four bytes that name it, I7 instant at which the book expires.
--   RETURNS is added to the status if the hits come back when the holder runs out. Such a holder is also a member of a set.
--     The score is the instant from which it is not known. A member: four bytes that name the book, 12 bytes of the holder, I4 hits, I7 instant of
--     the begin. The set has the name of the book, and RETURNING behind it.
-- A record without its book is forgotten. So a reset deletes the book, and no holder of the key is
-- known.
local HOLD, WAS, RECORD, BOOK = 'I1I4I4I8I8I8I4c16', 'I1I4I8I8I8', '<c4I1I4I7I7', '<c4I7'
local BEGIN, END, BEGUN, CANCEL, RELEASE = 1, 2, 3, 4, 5 -- phases; RELEASE makes a holder denied if it holds since an instant
local PAIR, PAIRED = 6, 8 -- PAIR is END of a holder that holds, else BEGIN, which holds also 0 hits; at an earlier instant it is BEGUN
local HELD, DENIED, ENDED = 1, 2, 3 -- statuses
local RETURNS, RETURNING, MEMBER = 16, '<', '<c4c12I4I7'
local holders, books, writes, ends, members, commands, recorded, keep

if general > 1 then
  holders, books = {}, {} -- holders by id: false or {status, hits, at, till}; books by place: false or {name, expiry}
  writes, ends = {}, {} -- by place: the values to write at the end of the script, and the instants at which these expire
  members = {} -- by place of the record: {hits, instant of the begin} in the set
  commands = {} -- about sets, for the end of the script

  -- recorded reads a book, and returns the holder in a record.
  function recorded(record, place, book, at_record)
    local b = books[place]
    if b == nil then
      b = book and {unpack(BOOK, book)}
      b = b and b[2] > now and b or false
      books[place] = b
    end
    if not b or not record then return false end
    local name, status, hits, at, till = unpack(RECORD, record)
    if name ~= b[1] then return false end
    if status >= RETURNS then
      status = status - RETURNS
      if till > now then members[at_record] = {hits, at} end -- else run_out takes the member, now or later
    end
    if at - now > BACK then at, till = now, till - at + now end -- the clock has gone back
    return {status, hits, at, till}
  end

  -- keep writes a holder at the end of the script; name is for a new book. returns, of a holder
  -- whose hits come back, is an instant from which the state needs them no more.
  function keep(record, book, r, at_most, name, returns)
    local till, status, member = r[4], r[1], members[record]
    if till <= now then return end
    local b = books[book]
    local alive = returns and math.max(returns, till) or till
    if not b or b[2] < alive then
      b = {b and b[1] or name:sub(1, 4), alive + floor(at_most / 16)}
      books[book], writes[book], ends[book] = b, pack(BOOK, b[1], b[2]), b[2]
    end
    if member then
      commands[#commands + 1] = {'ZREM', KEYS[book] .. RETURNING, pack(MEMBER, b[1], name:sub(5), spread(member))}
      members[record] = nil
    end
    if returns and status == HELD and r[2] > 0 then
      local set = KEYS[book] .. RETURNING
      members[record], status = {r[2], r[3]}, HELD + RETURNS
      commands[#commands + 1] = {'ZADD', set, string.format('%d', till), pack(MEMBER, b[1], name:sub(5), r[2], r[3])}
      commands[#commands + 1] = {'PEXPIREAT', set, string.format('%d', floor((b[2] + 999) / 1000) + later)}
    end
    writes[record], ends[record] = pack(RECORD, b[1], status, r[2], r[3], till), till
  end
end
