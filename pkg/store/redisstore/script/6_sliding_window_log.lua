-- Those of sliding_window_log are a list: I7 instant and I5 hits of each entry, the newest last, and behind them I7 instant of
-- the last charge and I5 hits of all entries. A state is what is to be done to it: {hits added, hits given back, charged}.
local log = uses_log == 1 and {} or nil
if log then
  local ENTRY, CHUNK = '<I7I5', 32

  -- open returns what is known of the log: its length, its hits, the instant, how many entries have expired, and the hits of
  -- the others.
  function log.open(key, period, now)
    local tail = redis.call('LINDEX', key, -1)
    local g = {key = key, period = period, now = now, len = 0, hits = 0, first = 0, live = 0, head = {}}
    if not tail then return g end
    local last
    last, g.hits = unpack(ENTRY, tail)
    if last > now then g.now = last end
    g.len = redis.call('LLEN', key) - 1
    g.live = g.hits
    while g.first < g.len do
      local at, hits = log.oldest(g, g.first)
      if g.now - at < period then break end
      g.first, g.live = g.first + 1, g.live - hits
    end
    return g
  end

  -- oldest returns entry i, counted from the oldest, 0.
  function log.oldest(g, i)
    local e = g.head[i]
    if not e then
      local chunk = redis.call('LRANGE', g.key, i, i + CHUNK - 1)
      for n = 1, #chunk do g.head[i + n - 1] = chunk[n] end
      e = chunk[1]
    end
    local at, hits = unpack(ENTRY, e)
    return at, hits
  end

  -- newest_left returns the instant of the newest entry of which something is left when that many hits are given back, nil if none.
  function log.newest_left(g, back)
    for i = g.len - 1, 0, -1 do
      local at, hits = unpack(ENTRY, redis.call('LINDEX', g.key, i))
      if back < hits then return at end
      back = back - hits
    end
  end

  function log.take(s, requests, _, _, _, hits, count_rejected, g)
    local added, refunded, charged = s[1], s[2], s[3]
    local logged = g.live - math.min(refunded, g.live)
    local used = logged + added
    local allowed = true
    if hits < 0 then
      local back = math.min(-hits, used)
      local from_added = math.min(back, added)
      added, refunded, charged = added - from_added, refunded + back - from_added, charged or back > 0
      used = used - back
    elseif used + hits <= requests then
      added, used, charged = added + hits, used + hits, charged or hits > 0
    elseif hits > 0 and requests == 0 then
      return s, false, 0, g.period, g.period
    else
      allowed = false
      if count_rejected and used < 2 * requests then
        local counted = math.min(hits, 2 * requests - used)
        added, used, charged = added + counted, used + counted, charged or counted > 0
      end
    end
    local remaining, retry, reset = 0, 0, 0
    if used < requests then remaining = requests - used end
    if used > 0 then
      if added > 0 then
        reset = g.period
      else
        local at = log.newest_left(g, refunded)
        if at then reset = g.period - (g.now - at) end
      end
    end
    if not allowed then
      if hits > requests then
        retry = reset > 0 and reset or g.period
      else
        retry = g.period
        local need = used + hits - requests
        if need <= used - added then
          for i = g.first, g.len - 1 do
            local at, n = log.oldest(g, i)
            if need <= n then
              retry = g.period - (g.now - at)
              break
            end
            need = need - n
          end
        end
      end
    end
    return {added, refunded, charged}, allowed, remaining, retry, reset
  end

  if general == 1 then
    -- correct takes hits of an earlier instant out of the log.
    function log.correct(g, s, delta, at)
      for i = g.len - 1, 0, -1 do
        local when, hits = unpack(ENTRY, redis.call('LINDEX', g.key, i))
        if when < at then break end
        if when == at then
          local back = math.min(hits, -delta)
          g.hits = g.hits - back
          if i >= g.first then g.live = g.live - back end -- else it has expired meanwhile
          if hits > back then
            redis.call('LSET', g.key, i, pack(ENTRY, when, hits - back))
            redis.call('LSET', g.key, -1, pack(ENTRY, g.now, g.hits))
          elseif g.len == 1 then
            redis.call('DEL', g.key)
            g.len, g.first = 0, 0
          else
            redis.call('LSET', g.key, i, '')
            redis.call('LREM', g.key, -1, '')
            redis.call('LSET', g.key, -1, pack(ENTRY, g.now, g.hits))
            g.len = g.len - 1
            if i < g.first then g.first = g.first - 1 end
          end
          g.head = {}
          break
        end
      end
      return s
    end
  end

  -- apply brings what is to be done into the list and returns from when on the key is as if never used.
  function log.apply(g, s)
    local added, refunded = s[1], s[2]
    if g.len > 0 then
      redis.call('RPOP', g.key)
      if g.first == g.len then
        redis.call('DEL', g.key)
      elseif g.first > 0 then
        redis.call('LTRIM', g.key, g.first, -1)
      end
      g.hits, g.len = g.live, g.len - g.first
    end
    local newest, newest_hits
    while g.len > 0 do
      newest, newest_hits = unpack(ENTRY, redis.call('LINDEX', g.key, -1))
      if refunded == 0 then break end
      local back = math.min(newest_hits, refunded)
      refunded, g.hits = refunded - back, g.hits - back
      if back < newest_hits then
        newest_hits = newest_hits - back
        redis.call('LSET', g.key, -1, pack(ENTRY, newest, newest_hits))
        break
      end
      redis.call('RPOP', g.key)
      g.len = g.len - 1
    end
    if added > 0 then
      g.hits = g.hits + added
      if g.len > 0 and newest == g.now then
        redis.call('LSET', g.key, -1, pack(ENTRY, newest, newest_hits + added))
      else
        redis.call('RPUSH', g.key, pack(ENTRY, g.now, added))
        g.len, newest = g.len + 1, g.now
      end
    end
    if g.len == 0 then return nil end
    redis.call('RPUSH', g.key, pack(ENTRY, g.now, g.hits))
    return newest + g.period
  end

  algorithms[LOG] = log
end
