-- Action CARRY carries hits over from a limit to the one that replaced it, as Carry in package
-- algorithms. The action comes before all transactions, for as many pairs as the number of charges
-- says. A pair: I1 1 if hits also go back, after the last transaction.
--   Two SIDEs, from and to: I4 key and I4 mark (indexes into KEYS), I1 algorithm, I7 requests, I4 capacity, I7 period.
-- The mark of a list has I7 instant and I5 hits of its newest entry.
local carry, carry_back

if carrying then
  local SIDE, NEWEST, pairs_of = 'I4I4I1I7I4I7', '<I7I5', {}

  local function side(key, mark, algorithm, requests, capacity, period)
    local s = {by = algorithms[algorithm], key = KEYS[key], mark = KEYS[mark], requests = requests, capacity = capacity, period = period}
    s.most = s.by.bucket and capacity or requests
    local known = redis.call('GET', s.mark)
    s.mark_was = known or ''
    if s.by.open then
      s.list, s.at, s.hits = s.by.open(s.key, period, now), -1, 0
      if known then s.at, s.hits = unpack(NEWEST, known) end
      return s
    end
    s.bucket = s.by.bucket
    local raw = redis.call('GET', s.key)
    s.was, s.is, s.known = raw or '', raw and read(s.by, raw, period, capacity), known and read(s.by, known, period, capacity)
    return s
  end

  -- content returns the used hits of a state, and the rest in 1/period hits.
  local function content(s, state)
    if not state then return 0, 0 end
    return s.by.content(state, s.period, now, s.capacity)
  end

  local function used(s, state)
    if s.list then return s.list.live end
    local whole, part = content(s, state)
    return part > 0 and whole + 1 or whole
  end

  -- gained returns the used hits that the mark does not have.
  local function gained(s)
    if not s.list then
      local whole, part = content(s, s.is)
      local known, rest = content(s, s.known)
      whole = part > rest and whole - known + 1 or whole - known
      return math.max(0, whole)
    end
    local g, sum = s.list, 0
    if s.at < 0 then return g.live end
    for i = g.len - 1, g.first, -1 do
      local at, hits = unpack(NEWEST, redis.call('LINDEX', s.key, i))
      if at == s.at then return sum + math.max(0, hits - s.hits) end
      if at < s.at then break end
      sum = sum + hits
    end
    return sum
  end

  -- fit returns the hits that fit. A list forgets as many of its oldest hits for newer ones.
  local function fit(s, hits)
    local g = s.list
    if not g then
      local whole, part = content(s, s.is)
      if s.bucket and (whole > 0 or part > 0) then whole = whole + s.most - s.is[5] end
      local free = s.most - whole
      if whole < 0 then free = s.most elseif part > 0 then free = free - 1 end
      return math.max(0, math.min(hits, free))
    end
    hits = math.min(hits, s.requests)
    local over = math.min(hits, g.live + hits - s.requests)
    while hits > 0 and over > 0 and g.first < g.len do
      local at, n = unpack(NEWEST, redis.call('LINDEX', s.key, g.first))
      local back = math.min(n, over)
      over, g.live, g.head = over - back, g.live - back, {}
      if n > back then
        redis.call('LSET', s.key, g.first, pack(NEWEST, at, n - back))
      else
        g.first = g.first + 1
      end
    end
    return hits
  end

  local function add(s, hits)
    if hits <= 0 then return end
    if not s.list then
      s.is = s.by.take(s.is, s.requests, s.capacity, s.period, now, hits, OWE)
      return
    end
    local idle = s.by.apply(s.list, (s.by.take({0, 0, false}, s.list.live + hits, nil, nil, nil, hits, true, s.list)))
    if idle then redis.call('PEXPIREAT', s.key, floor((idle + 999) / 1000) + later) end
    s.list = s.by.open(s.key, s.period, now)
  end

  -- enter puts the entries of a list that its mark does not have into an unused one.
  local function enter(from, to, hits)
    local g, room, first, sum = from.list, to.requests, from.list.len, 0
    redis.call('DEL', to.key)
    while first > g.first and room > 0 do
      local at, n = unpack(NEWEST, redis.call('LINDEX', from.key, first - 1))
      if at <= from.at then break end
      first, room = first - 1, room - math.min(room, n)
    end
    local newest = 0
    for i = first, g.len - 1 do
      local entry = redis.call('LINDEX', from.key, i)
      local at, n = unpack(NEWEST, entry)
      hits = hits - math.min(hits, n)
      if g.now - at < to.period then
        redis.call('RPUSH', to.key, entry)
        newest, sum = at, sum + n
      end
    end
    if sum > 0 then
      redis.call('RPUSH', to.key, pack(NEWEST, newest, sum))
      redis.call('PEXPIREAT', to.key, floor((newest + to.period + 999) / 1000) + later)
    end
    to.list = to.by.open(to.key, to.period, now)
    add(to, math.min(hits, room))
  end

  -- keep writes the value of a state if it is not as it was.
  local function keep(s, name, was, state)
    if not state then
      if was ~= '' then redis.call('DEL', name) end
      return
    end
    local raw = pack(s.by.format, state[1], state[2], state[3], state[4], state[5])
    if raw ~= was then
      local idle = math.min(s.by.idle(state, s.period), EXACT)
      redis.call('SET', name, raw, 'PXAT', string.format('%d', floor((idle + 999) / 1000) + later))
    end
  end

  local function mark(s)
    s.known = s.is
    if not s.list then return end
    local entry = redis.call('LINDEX', s.key, -2)
    if not entry then
      if s.mark_was ~= '' then redis.call('DEL', s.mark) end
    elseif entry ~= s.mark_was then
      local at = unpack(NEWEST, entry)
      redis.call('SET', s.mark, entry, 'PXAT', string.format('%d', floor((at + s.period + 999) / 1000) + later))
    end
  end

  local function carry_one(both, a, b)
    local from, to = side(spread(a)), side(spread(b))
    if from.requests == 0 or to.requests == 0 then return end
    local more, back = gained(from), gained(to)
    if more == 0 and not both then return end
    local hits = fit(to, more)
    if more > 0 and from.bucket and to.bucket and used(to, to.is) == 0 and used(from, from.known) == 0 then
      local all, spent = from.is[5], used(from, from.is)
      hits = to.capacity + math.max(0, spent - all) - math.min(math.max(0, all - spent), to.capacity)
    end
    if more > 0 and from.list and to.list and to.list.live == 0 then
      enter(from, to, more)
    else
      add(to, hits)
    end
    if both then add(from, fit(from, back)) end
    if both or back == 0 then
      mark(to)
    elseif not to.list and hits > 0 then
      to.known = to.by.take(to.known, to.requests, to.capacity, to.period, now, hits, OWE)
    end
    mark(from)
    for _, s in ipairs({from, to}) do
      if not s.list then
        keep(s, s.key, s.was, s.is)
        keep(s, s.mark, s.mark_was, s.known)
      end
    end
  end

  function carry(n)
    for i = 1, n do
      local p = {unpack('<I1' .. SIDE .. SIDE, request, position)}
      position = p[14]
      pairs_of[i] = {p[1] == 1, {spread(p, 2, 7)}, {spread(p, 8, 13)}}
      carry_one(spread(pairs_of[i]))
    end
  end

  -- carry_back carries the hits of the transactions over, after all values are written.
  function carry_back()
    for i = #pairs_of, 1, -1 do
      if pairs_of[i][1] then carry_one(spread(pairs_of[i])) end
    end
  end
end
