if general % 4 >= 2 then
  local run_out

  -- charge reads a charge, its key and its holder.
  local function charge()
    local key, algorithm, flags, requests, capacity, period, hits
    key, algorithm, flags, requests, capacity, period, hits, position = unpack(CHARGE, request, position)
    local by = algorithms[algorithm]
    if flags < 32 then
      if before[key] == nil then load(key, algorithm, period, capacity) end
      return {key = key, flags = flags, requests = requests, capacity = capacity, hits = hits}
    end
    local phase, record, book, at_most, at, from, estimate, name
    phase, record, book, at_most, at, from, estimate, name, position = unpack('<' .. HOLD, request, position)
    local returns = phase >= RETURNS
    if returns then phase = phase - RETURNS end
    local c = { -- all fields, as a table takes time to grow
      key = key, flags = flags, requests = requests, capacity = capacity, period = period, hits = hits,
      phase = phase, record = record, book = book, at_most = at_most, at = at, from = from, name = name, by = by, id = record,
      was = false, when = 0, estimate = estimate, paired = 0, returns = returns,
    }
    if by.slots then
      c.id, c.capacity = record .. name, at_most
      if before[key] == nil then
        local hits, at, till
        kept_by[key], period_of[key] = by, 0
        before[key], state[key], hits, at, till = by.start(KEYS[key], KEYS[c.record], c.name)
        holders[c.id] = hits and {HELD, hits, at, till} or false
      elseif holders[c.id] == nil then
        local hits, at, till = by.find(before[key], c.name)
        holders[c.id] = hits and {HELD, hits, at, till} or false
      end
      return c
    end
    local first = before[key] == nil -- of the key: the caller then learns the value with the hits that come back
    if first then load(key, algorithm, period, capacity) end
    if holders[record] == nil then
      local found = redis.call('MGET', KEYS[record], KEYS[book])
      holders[record] = recorded(found[1], book, found[2], record)
    end
    if returns and first then run_out(c) end
    return c
  end

  -- instant returns the instant of a charge, which is held at the last charge of its key, or in the
  -- window of its counter.
  local function instant(c)
    local s = state[c.key]
    if c.from > 0 then return math.min(math.max(now, c.from), c.from + c.period - 1) end
    if c.by.slots then return math.max(now, s[2]) end
    if c.by.open then return before[c.key].now end
    return s and s[1] > now and s[1] or now
  end

  -- find returns the holder of a charge as an instant finds it.
  local function find(c, at)
    local r = holders[c.id]
    return r and r[4] > at and r
  end

  -- resolve makes each PAIR an END, if a PAIR of its holder in the transaction holds, else a begin.
  -- The holder is in the last bytes of the name.
  local function resolve(all, n)
    local ends
    for i = 1, n do
      local c = all[i]
      if c.phase == PAIR then
        local r = find(c, instant(c))
        ends = ends or {}
        if r and r[1] == HELD then ends[c.name:sub(5)] = true end
      end
    end
    if not ends then return end
    for i = 1, n do
      local c = all[i]
      if c.phase == PAIR then
        if ends[c.name:sub(5)] then c.phase, c.paired = END, PAIRED else c.hits = c.estimate end
      end
    end
  end

  -- holds_none reports whether a begin is a PAIR that holds 0 hits.
  local function holds_none(c) return c.phase == PAIR and not c.by.slots end

  -- become makes r the holder of a charge.
  local function become(c, r)
    holders[c.id] = r
    local returns
    if c.returns then
      local s, by = state[c.key], c.by
      returns = r[4] + 2 * c.period
      if s and by.idle then returns = math.max(returns, by.idle(s, c.period) + c.at_most) end
      if returns > EXACT / 2 then returns = EXACT / 2 end
    end
    keep(c.record, c.book, r, c.at_most, c.name, returns)
  end

  -- born makes a new holder hold the hits of its begin, or makes it denied.
  local function born(c, holds)
    local till = c.when + c.at_most
    if not c.by.slots then
      become(c, holds and {HELD, c.hits, c.when, till} or {DENIED, 0, 0, till})
    elseif holds then
      state[c.key] = c.by.hold(before[c.key], state[c.key], c.name, c.hits, c.when, till)
      holders[c.id] = {HELD, c.hits, c.when, till}
    end
  end

  -- probe returns a decision about a list, for a charge that is allowed in any case.
  local function probe(c)
    local _, remaining, _, reset = take(c.key, c.requests, c.capacity, 0, false)
    return {1, remaining, 0, reset, 0}
  end

  local apply, begin, begins

  if general % 8 >= 4 then
    -- flush writes the changes of a list, and reads the list again.
    local function flush(key)
      local by, is = kept_by[key], state[key]
      if not is[3] then return end
      local idle = by.apply(before[key], is)
      if idle then redis.call('PEXPIREAT', KEYS[key], floor((idle + 999) / 1000) + later) end
      before[key], state[key] = by.open(KEYS[key], period_of[key], now), {0, 0, false}
    end

    -- give_back gives back hits that were charged at an instant. A window gives back its own hits
    -- only, and a list the hits of that instant. give_back returns a decision about a list that is
    -- peeked at, which stays.
    local function give_back(c, hits, charged, at, peeked)
      local key, by = c.key, c.by
      if by.open then
        if peeked then
          local remaining, reset = by.less(before[key], c.requests, hits, charged)
          return {1, remaining, 0, reset, 0}
        end
        flush(key)
        by.correct(before[key], c.requests, -hits, charged)
      elseif by.dated then -- a sliding count, or a window of a calendar
        state[key] = state[key] and by.correct(state[key], c.requests, c.capacity, c.period, now, -hits, charged)
      elseif not by.windows or floor((charged - c.from) / c.period) == floor((at - c.from) / c.period) then
        take(key, c.requests, c.capacity, -hits, true)
      end
    end

    -- run_out gives the hits of holders that have run out back, some at a time. All were charged to
    -- this book. A counter has a window of its own.
    function run_out(c)
      local key, set, by = c.key, KEYS[c.book] .. RETURNING, c.by
      local due = redis.call('ZRANGEBYSCORE', set, '-inf', string.format('%d', now), 'LIMIT', 0, 64)
      if #due == 0 then return end
      local b = books[c.book]
      for i = 1, #due do
        local name, _, hits, at = unpack(MEMBER, due[i])
        if b and name == b[1] and (state[key] or by.open) then
          local of = c
          if by.own then -- under its own limit
            of = {key = key, by = by, from = c.from, period = c.period}
            of.requests, of.capacity = by.own(state[key])
          end
          give_back(of, hits, at, instant(c))
        end
      end
      commands[#commands + 1] = {'ZREM', set, spread(due)}
      if not by.open then
        local s = state[key]
        told[key] = s and (by.write and by.write(s) or pack(by.format, s[1], s[2], s[3], s[4], s[5])) or ''
      end
    end

    -- charge_beyond charges hits, also beyond the limit, at the instant of the charge, and returns
    -- a decision about a list.
    local function charge_beyond(c, hits, at)
      local key, by = c.key, c.by
      if c.at == 0 then
        local _, remaining, _, reset = take(key, c.requests, c.capacity, hits, OWE)
        return by.open and {1, remaining, 0, reset, 0}
      elseif by.open then
        flush(key)
        by.correct(before[key], c.requests, hits, at)
      else
        state[key] = by.correct(state[key], c.requests, c.capacity, c.period, now, hits, at, false, OWE)
      end
    end

    -- effect is Effect of package algorithms for every phase but BEGIN: the hits to charge, or to
    -- give back if negative.
    local function effect(c, r)
      local held = r and r[1] == HELD
      local hits = math.max(c.hits, 0)
      if c.phase == END then
        if held then return c.by.slots and -r[2] or hits - r[2] end
        return not r and not c.by.slots and hits or 0
      elseif c.phase == BEGUN then
        return not held and not (r and r[1] == ENDED) and hits or 0
      end
      return held and -r[2] or 0
    end

    -- apply applies every phase but BEGIN, and returns a decision about a list.
    function apply(c, peeked)
      local latest = instant(c)
      local at = c.at > 0 and c.phase ~= RELEASE and math.min(c.at, latest) or latest
      local r = find(c, latest)
      if c.phase == PAIR then -- which came without Redis
        if r and r[1] == HELD then c.phase, c.paired = END, PAIRED else c.phase, c.hits, c.first = BEGUN, c.estimate, true end
      end
      c.was, c.when = r, at
      local key, by, phase = c.key, c.by, c.phase
      local held = r and r[1] == HELD
      if phase == RELEASE and (not held or r[3] ~= c.at) then
        if r and not by.slots and not by.open then -- the end has given back all but its own hits
          returned[key] = (returned[key] or 0) + c.hits - (r[3] == c.at and r[2] or 0)
        end
        return
      end
      local d
      local hits, till = effect(c, r), at + c.at_most
      if by.slots then
        if hits < 0 then
          if peeked then
            state[key] = by.without(before[key], state[key], c.name, -hits, r[4])
          else
            state[key], holders[c.id] = by.free(before[key], state[key], c.name, -hits, r[4]), false
          end
        elseif hits > 0 and till > latest then
          if peeked then
            state[key] = by.with(state[key], hits, till)
          else
            state[key], holders[c.id] = by.hold(before[key], state[key], c.name, hits, at, till), {HELD, hits, at, till}
          end
        end
        return probe(c)
      end
      if phase == RELEASE then -- the reservation of the hits is corrected elsewhere
      elseif hits < 0 then
        d = give_back(c, -hits, r[3], at, peeked)
      elseif hits > 0 then
        d = charge_beyond(c, hits, at)
      end
      if hits <= 0 and c.at == 0 then d = d or probe(c) end -- also a probe takes over the numbers of the limit
      if not by.open then d = nil end
      if peeked then return d end
      if phase == BEGUN and not held and not (r and r[1] == ENDED) and (c.hits > 0 or c.first) then
        become(c, {HELD, c.hits, at, till})
      elseif (phase == CANCEL or phase == RELEASE) and held then
        become(c, {DENIED, 0, r[3], r[4]})
      elseif phase == END and (held or not r and c.hits >= 0) then
        become(c, {ENDED, held and math.max(c.hits, 0) or 0, held and r[3] or 0, held and r[4] or till})
      end
      return d
    end
  end

  local function tell(c, d)
    if d then answer[#answer + 1] = pack(DECISION, d[1], d[2], d[3], d[4], d[5], before[c.key].now) end
    if not c.phase then return end
    local r = c.was
    if r then
      local held = r[1] == HELD
      answer[#answer + 1] = pack('<' .. WAS, r[1] + c.paired, held and r[2] or 0, held and r[3] or 0, r[4], c.when)
    else
      answer[#answer + 1] = pack('<' .. WAS, c.paired, 0, 0, 0, c.when)
    end
  end

  if general % 16 >= 8 then
    -- begin decides a begin that is alone in its transaction.
    function begin(action, c)
      local key, by, when = c.key, c.by, instant(c)
      local was, hits = find(c, when), math.max(c.hits, 0)
      local held = was and was[1] == HELD
      c.was, c.when = was, when
      local base = state[key]
      local ok, remaining, retry, reset =
        take(key, c.requests, c.capacity, held and 0 or hits, not held and not by.slots and c.flags % 8 >= 4)
      if held then ok, retry = true, 0 end
      if (hits > 0 or holds_none(c)) and not held and action == TAKE then
        if by.slots then state[key] = base end
        born(c, ok)
      end
      return ok or c.flags % 4 >= 2, by.open and {ok and 1 or 0, remaining, retry, reset, 0}
    end
  end

  if general % 2 == 1 then
    -- begins decides the charges that have no holder, or begin one. Then the new holders hold, or
    -- are denied.
    function begins(action, all, n)
      local keys, flags, requests, capacities, hits, free = {}, {}, {}, {}, {}, {}
      local base, asked = {}, {} -- asked has the holders as the charges before in the transaction leave them
      for i = 1, n do
        local c = all[i]
        keys[i], flags[i], requests[i], capacities[i], hits[i] = c.key, c.flags, c.requests, c.capacity, c.hits
        if c.phase then
          c.when = instant(c)
          hits[i] = math.max(c.hits, 0)
          if c.by.slots then base[c.key] = state[c.key] end
        end
      end
      local function ask(i)
        local c = all[i]
        if not c.phase then return end
        c.was = asked[c.id] or find(c, c.when)
        free[i] = c.was and c.was[1] == HELD
        if free[i] then
          hits[i] = 0
          if c.flags % 8 >= 4 then flags[i] = c.flags - 4 end
        end
      end
      local function note(i, ok)
        local c = all[i]
        if c.phase and (hits[i] > 0 or holds_none(c) and not free[i]) and (ok or not c.by.slots) then
          asked[c.id] = ok and {HELD, hits[i], c.when, c.when + c.at_most} or {DENIED, 0, 0, c.when + c.at_most}
        end
      end
      local passed, allowed, decisions = decide(action, n, keys, flags, requests, capacities, hits, free, ask, note)
      for key, was in pairs(base) do state[key] = was end
      for i = 1, n do
        local c = all[i]
        local r = c.phase and find(c, c.when)
        if c.phase and (c.hits > 0 or holds_none(c)) and not (r and r[1] == HELD) then
          born(c, allowed[i] and (passed or action == RESERVE))
        end
      end
      return passed, decisions
    end

    -- settle applies a charge with a holder of a correction. A BEGIN is a probe there, for a
    -- decision.
    function settle()
      local c = charge()
      if c.phase == BEGIN then
        tell({key = c.key}, probe(c))
      else
        apply(c, false)
      end
    end
  end

  -- holding applies a transaction with holders. Of several charges these come first: all with a
  -- holder but the begins, in order. The rest is decided as several does.
  function holding(action, n)
    if n == 1 and action ~= RESERVE then
      local c = charge()
      resolve({c}, 1)
      local base = state[c.key]
      local passed, d = true, nil
      if c.phase == BEGIN or c.phase == PAIR then passed, d = begin(action, c) else d = apply(c, action == PEEK) end
      if action == PEEK then state[c.key] = base end
      answer[#answer + 1] = pack('<I4', passed and 1 or 0)
      return tell(c, d)
    end
    local all, begun, d = {}, {}, {}
    for i = 1, n do all[i] = charge() end
    resolve(all, n)
    local other = false -- a PAIR that ends has begun the charges of another rule
    for i = 1, n do
      local c = all[i]
      if not c.phase or c.phase == BEGIN or c.phase == PAIR then
        if other and c.flags % 16 >= 8 then c.flags = c.flags - 8 end
        begun[#begun + 1], other = c, false
      else
        other = other or c.paired > 0 and c.flags % 16 < 8
        d[i] = apply(c, false)
      end
    end
    local passed, decisions = true, {}
    if #begun > 0 then passed, decisions = begins(action, begun, #begun) end
    if action == RESERVE then -- each charge of a list tells the hits that the reservation added
      for i = 1, n do
        for j = 1, #begun do
          if d[i] and begun[j].key == all[i].key then d[i][5] = decisions[j][5] end
        end
      end
    end
    answer[#answer + 1] = pack('<I4', passed and 1 or 0)
    local next = 1
    for i = 1, n do
      local c = all[i]
      if c == begun[next] then
        tell(c, decisions[next])
        next = next + 1
      else
        tell(c, d[i])
      end
    end
  end
end
