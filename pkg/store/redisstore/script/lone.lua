-- The usual transaction with a holder is one begin or end, under a limit without a list. If the
-- request has no other transactions with holders, the script makes lone in place of the functions
-- of holds.lua.
if general >= 16 and general % 4 < 2 then
  local ONE, PASSED, DECIDED = CHARGE .. HOLD, '<I4' .. WAS, '<I4' .. DECISION:sub(2) .. WAS

  -- slot is lone under concurrency.
  local function slot(by, key, flags, requests, hits, phase, book, at_most, estimate, name)
    local g, s, held, at, till = before[key], state[key], nil, nil, nil
    if g then
      held, at, till = by.find(g, name)
    else
      g, s, held, at, till = by.start(KEYS[key], KEYS[book], name)
      before[key], kept_by[key] = g, by
    end
    local when = math.max(now, s[2])
    if held and till <= when then held = nil end
    local allowed, remaining, retry, reset = true, 0, 0, 0
    local paired = phase == PAIR and held and PAIRED or 0
    if phase == PAIR and not held then phase, hits = BEGIN, estimate end
    if phase == BEGIN then
      if hits < 0 or held then hits = 0 end
      local _
      _, allowed, remaining, retry, reset = by.take(s, requests, at_most, nil, nil, hits)
      if held then allowed, retry = true, 0 end
      if allowed and hits > 0 then s = by.hold(g, s, name, hits, when, when + at_most) end
    else
      if held then s = by.free(g, s, name, held, till) end
      local _
      _, _, remaining, _, reset = by.take(s, requests, at_most, nil, nil, 0)
    end
    state[key] = s
    local passed = allowed or flags % 4 >= 2
    answer[#answer + 1] = pack(DECIDED, passed and 1 or 0, allowed and 1 or 0, remaining, retry, reset, 0, now,
      (held and HELD or 0) + paired, held or 0, held and at or 0, held and till or 0, when)
  end

  -- lone has the effect of holding, and reads all values with one command.
  function lone()
    local key, algorithm, flags, requests, capacity, period, hits, phase, record, book, at_most, _, from, estimate, name
    key, algorithm, flags, requests, capacity, period, hits, phase, record, book, at_most, _, from, estimate, name, position =
      unpack(ONE, request, position)
    local by, r = algorithms[algorithm], holders[record]
    if by.slots then return slot(by, key, flags, requests, hits, phase, book, at_most, estimate, name) end
    if r == nil then
      local found = redis.call('MGET', KEYS[key], KEYS[record], KEYS[book])
      if before[key] == nil then
        local was = found[1] or redis.call('GET', KEYS[key]) -- GET refuses a value of another type
        before[key], state[key] = was or '', was and read(by, was, period, capacity)
        kept_by[key], period_of[key] = by, period
      end
      r = recorded(found[2], book, found[3], record)
      holders[record] = r
    end

    local s, when = state[key], now
    if from > 0 then
      when = math.min(math.max(now, from), from + period - 1)
    elseif s and s[1] > now then
      when = s[1]
    end
    if r and r[4] <= when then r = false end
    local held, passed, next = r and r[1] == HELD, true, nil
    local paired = phase == PAIR and held and PAIRED or 0
    local first = phase == PAIR and not held
    if first then hits = estimate end
    if first or phase == BEGIN then
      if hits < 0 or held then hits = 0 end
      s, passed = by.take(s, requests, capacity, period, now, hits, flags % 8 >= 4)
      if hits > 0 or first then
        next = passed and {HELD, hits, when, when + at_most} or {DENIED, 0, 0, when + at_most}
      end
      passed = passed or held or flags % 4 >= 2
    else
      local cost = hits > 0 and hits or 0
      local more = held and cost - r[2] or not r and cost or 0
      if more < 0 then
        if by.dated then -- a sliding count, or a window of a calendar
          s = s and by.correct(s, requests, capacity, period, now, more, r[3])
        elseif not by.windows or floor((r[3] - from) / period) == floor((when - from) / period) then
          s = by.take(s, requests, capacity, period, now, more, true)
        end
        more = 0
      end
      s = by.take(s, requests, capacity, period, now, more, OWE) -- also 0 hits take over the numbers of the limit
      if held then
        next = {ENDED, cost, r[3], r[4]}
      elseif not r and hits >= 0 then
        next = {ENDED, 0, 0, when + at_most}
      end
    end
    state[key] = s
    if next then
      holders[record] = next
      keep(record, book, next, at_most, name)
    end
    local status, hits, at, till = 0, 0, 0, 0
    if r then
      status, till = r[1], r[4]
      if held then hits, at = r[2], r[3] end
    end
    answer[#answer + 1] = pack(PASSED, passed and 1 or 0, status + paired, hits, at, till, when)
  end
end
