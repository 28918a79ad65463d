while position <= #request do
  local action, times, n
  action, times, n, position = unpack('<I1I4I4', request, position)
  if action >= CORRECT then
    if action == CORRECT then correct(n) elseif action == CARRY then carry(n) elseif lone then lone() else holding(action - HOLDS, n) end
  elseif n > 1 then
    several(action, n)
  else -- as several, for one charge that repeats
    local key, algorithm, flags, requests, capacity, period, hits
    key, algorithm, flags, requests, capacity, period, hits, position = unpack(CHARGE, request, position)
    local by, is, was = algorithms[algorithm], state[key], before[key]
    local list = by.open
    if was == nil then
      if list then
        was, is = list(KEYS[key], period, now), {0, 0, false}
      else
        was = redis.call('GET', KEYS[key])
        is = was and read(by, was, period, capacity)
      end
      before[key], kept_by[key], period_of[key] = was or '', by, period
    end
    local count_rejected, enforced, passed = flags % 8 >= 4, flags % 4 < 2, 0
    local keep = action == TAKE or action == RESERVE and hits >= 0
    for _ = 1, times do
      local next, allowed, remaining, retry, reset = by.take(is, requests, capacity, period, now, hits, count_rejected, was)
      if allowed or not enforced then passed = passed + 1 end
      if list then
        local added = action == RESERVE and keep and next[1] - is[1] or 0
        answer[#answer + 1] = pack('<I4' .. DECISION, passed, allowed and 1 or 0, remaining, retry, reset, added, was.now)
      elseif keep and next == is and not allowed then -- the next ones are denied, too
        if not enforced then passed = times end
        break
      end
      if keep then is = next end
    end
    state[key] = is
    if not list then answer[#answer + 1] = pack('<I4', passed) end
  end
end

-- Without memory Redis refuses a command that may need memory. But a script goes on if it has
-- removed something before. Redis would apply some requests, while others are decided without
-- Redis. So the first command that writes is one that may need memory.
local values = {}
for key = 1, #KEYS do
  local by, was, is = kept_by[key], before[key], state[key]
  if not by then -- of a holder
    values[key] = '\0'
    if writes and writes[key] then
      redis.call('SET', KEYS[key], writes[key], 'PXAT', string.format('%d', floor((ends[key] + 999) / 1000) + later))
    end
  elseif by.open then
    values[key] = '\0'
    local idle = is[3] and by.apply(was, is)
    if idle then redis.call('PEXPIREAT', KEYS[key], floor((idle + 999) / 1000) + later) end
  else
    local tells = told and told[key] or was
    values[key] = pack('<I1', #tells) .. tells
    if is and by.write then
      local raw = by.write(is)
      if raw ~= was then
        redis.call('SET', KEYS[key], raw, 'PX', math.max(is[2], math.ceil(period_of[key] / 1000)))
      end
    elseif is then
      local raw = pack(by.format, is[1], is[2], is[3], is[4], is[5])
      if raw ~= was then
        -- Redis prints a number with 17 digits, which takes longer than format.
        redis.call('SET', KEYS[key], raw, 'PXAT', string.format('%d', floor((math.min(by.idle(is, period_of[key]), EXACT) + 999) / 1000) + later))
      end
    elseif was ~= '' then
      redis.call('SETRANGE', KEYS[key], 0, '') -- changes nothing
      redis.call('DEL', KEYS[key])
    end
  end
end
if commands then
  for i = 1, #commands do redis.call(spread(commands[i])) end
end
if carrying then carry_back() end
return pack('<I1I8', 0, now) .. table.concat(values) .. table.concat(answer)
