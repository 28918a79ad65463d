-- What follows is the transaction.

local time, later = redis.call('TIME'), 0 -- later: milliseconds from the instants of states to those of expiry
local server = time[1] * 1000000 + time[2]
if now == 0 then
  now = server
else
  later = floor((server - now) / 1000) + 3600000
end
if deadline > 0 and now >= deadline then return pack('<I1I8', 1, now) end

local CHARGE, CORRECTION, DECISION = '<I4I1I1I4I4I7i5', '<I8I5I7i5I1', '<I1I4I8I8I5I7'
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
    state[key] = raw and read(by, raw)
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
      if d then answer[#answer + 1] = pack(DECISION, d[1], d[2], d[3], d[4], d[5], before[keys[i]].now) end
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
          state[key] = was ~= '' and read(algorithms[algorithm], was)
        elseif difference ~= 0 then
          state[key] = kept_by[key].correct(state[key], requests, capacity, period, now, difference, at, whole, part)
        end
      end
    end
    for i = 1, n do
      local c = charges[i]
      local key, allowed, remaining, retry, reset = c[1], false, 0, 0, 0
      if again[key] then state[key], allowed, remaining, retry, reset = take(key, c[2], c[3], c[4], c[5]) end
      if c[6] == LOG then answer[#answer + 1] = pack(DECISION, allowed and 1 or 0, remaining, retry, reset, 0, 0) end
    end
  end

end
