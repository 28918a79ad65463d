local CHARGE, CORRECTION, DECISION = '<I4I1I1I7I4I7i5', '<I8I1c0I1c0I1c0', '<I1I4I8I8I5I7'
local answer = {} -- for each transaction
local before, state, kept_by, period_of = {}, {}, {}, {} -- by key; before is the value, or the result of open
local load, take, decide, several, correct, lone, holding, settle, returned, loaded, told

if general % 4 > 0 then
  returned = {} -- by key: hits of a correction that have come back before, with the end of their holder
  loaded = {} -- by key: the first state
  told = {} -- by key: the value with hits that came back, in place of the value before

  -- load reads the state of a key.
  function load(key, algorithm, period, capacity)
    local by = algorithms[algorithm]
    kept_by[key], period_of[key] = by, period
    if by.open then
      before[key], state[key] = by.open(KEYS[key], period, now), {0, 0, false}
    else
      local raw = redis.call('GET', KEYS[key])
      before[key], state[key] = raw or '', raw and read(by, raw, period, capacity)
    end
    loaded[key] = state[key]
  end

  -- take takes hits from the state of a key and returns whether they are allowed and, for a list,
  -- the rest of the decision.
  function take(key, requests, capacity, hits, count_rejected)
    local next, allowed, remaining, retry, reset =
      kept_by[key].take(state[key], requests, capacity, period_of[key], now, hits, count_rejected, before[key])
    state[key] = next
    return allowed, remaining, retry, reset
  end
end

if general % 2 == 1 then
  -- admitted is Admitted of package store. Modes: 0 enforce, 1 quota, 2 shadow, 3 both.
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

  -- decide applies charges, each to the state of its key. decide returns whether the request is
  -- admitted, which charges are allowed, and the decisions about lists. ask and note, if there are
  -- any, are called before and after each charge. A charge in free is a probe that is allowed in
  -- any case.
  function decide(action, n, keys, flags, requests, capacities, hits, free, ask, note)
    local allowed, decisions, undo, net = {}, {}, {}, {}
    for i = 1, n do
      local key = keys[i]
      if undo[key] == nil then undo[key], net[key] = state[key], 0 end
      if ask then ask(i) end
      local count_rejected = flags[i] % 8 >= 4
      local ok, remaining, retry, reset = take(key, requests[i], capacities[i], hits[i], count_rejected)
      if free and free[i] then ok, retry = true, 0 end
      allowed[i] = ok
      if note then note(i, ok) end
      if kept_by[key].open then decisions[i] = {ok and 1 or 0, remaining, retry, reset, 0} end
      if ok or count_rejected then net[key] = net[key] + hits[i] end
    end
    local passed = admitted(n, flags, allowed)
    if action == RESERVE then
      -- A refund waits for the verdict on the whole request.
      for key, was in pairs(undo) do
        if kept_by[key].slots then -- has no refunds
        elseif kept_by[key].open then
          local is = state[key]
          local added = math.max(0, is[1] - was[1] - (is[2] - was[2]))
          state[key] = {was[1] + added, was[2], was[3] or added > 0}
          for i = 1, n do
            if keys[i] == key then decisions[i][5] = added end
          end
        elseif net[key] < 0 then
          state[key] = was
        end
      end
    elseif not passed then
      for key, was in pairs(undo) do state[key] = was end
      for i = 1, n do
        local count_rejected = flags[i] % 8 >= 4
        local ok, remaining, retry, reset =
          take(keys[i], requests[i], capacities[i], count_rejected and hits[i] or 0, count_rejected)
        if decisions[i] and allowed[i] then
          if not count_rejected then ok, retry = true, 0 end
          decisions[i] = {ok and 1 or 0, remaining, retry, reset, 0}
        end
      end
    end
    return passed, allowed, decisions
  end

  -- several applies a transaction of any number of charges without holders.
  function several(action, n)
    local keys, flags, requests, capacities, hits = {}, {}, {}, {}, {}
    for i = 1, n do
      local key, algorithm, period
      key, algorithm, flags[i], requests[i], capacities[i], period, hits[i], position = unpack(CHARGE, request, position)
      keys[i] = key
      if before[key] == nil then load(key, algorithm, period, capacities[i]) end
    end
    local passed, _, decisions = decide(action, n, keys, flags, requests, capacities, hits)
    answer[#answer + 1] = pack('<I4', passed and 1 or 0)
    for i = 1, n do
      local d = decisions[i]
      if d then answer[#answer + 1] = pack(DECISION, d[1], d[2], d[3], d[4], d[5], before[keys[i]].now) end
    end
  end

  -- correct charges hits to keys at an earlier instant. If the value of a key is still left, which
  -- a reservation wrote, correct writes target instead. Otherwise the algorithm charges the
  -- difference; was is the value before the reservation. A charge with a holder is for settle. Any
  -- other charge without a correction is an ordinary one.
  function correct(n)
    answer[#answer + 1] = pack('<I4', 1)
    for _ = 1, n do
      local key, algorithm, flags, requests, capacity, period, hits
      local from = position
      key, algorithm, flags, requests, capacity, period, hits, position = unpack(CHARGE, request, position)
      if flags >= 32 then
        position = from
        settle()
      else
        if before[key] == nil then load(key, algorithm, period, capacity) end
        local by = kept_by[key]
        if flags < 16 then
          local allowed, remaining, retry, reset = take(key, requests, capacity, hits, flags % 8 >= 4)
          if by.open then answer[#answer + 1] = pack(DECISION, allowed and 1 or 0, remaining, retry, reset, 0, 0) end
        else
          local at, left, target, was
          at, left, target, was, position = unpack(CORRECTION, request, position)
          local is = state[key]
          local back = returned[key] or 0
          hits, returned[key] = hits + back, nil
          local newest = by.open and before[key].now or is and is[1] or 0
          at = math.min(at, math.max(now, newest)) -- the clock of the caller may be ahead a little, or Redis's went back
          if by.open then
            by.correct(before[key], requests, hits, at)
          elseif back == 0 and is == loaded[key] and before[key] == left then
            state[key] = target ~= '' and read(by, target)
          elseif hits ~= 0 then
            was = was ~= '' and read(by, was)
            state[key] = by.correct(state[key], requests, capacity, period, now, hits, at, was)
          end
        end
      end
    end
  end
end

