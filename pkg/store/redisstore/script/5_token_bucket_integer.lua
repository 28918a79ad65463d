if uses_integer == 1 then
  -- {instant of the last charge, how long before it the refill mark lies in microseconds, and the rest in nanoseconds, deficit,
  -- requests}
  local token_bucket_integer = {format = '<I7I7I2I5I4'}

  -- settled returns deficit, instant and mark after a refill. What is given is changed to the state of the same fields.
  function token_bucket_integer.settled(last, since, since_ns, deficit, rate, period, now)
    if deficit == 0 then return 0, now, 0, 0 end
    if now < last then now = last end
    if rate == 0 then return deficit, now, now - last + since, since_ns end
    since = now - last + since
    local refill, rest = muldiv(since, rate, period)
    refill = refill + floor((rest + floor(since_ns * rate / 1000)) / period)
    if refill >= deficit then return 0, now, 0, 0 end
    if refill > 0 then
      local us, left = muldiv(period, refill, rate)
      since, since_ns = since - us, since_ns - floor(left * 1000 / rate)
      if since_ns < 0 then since, since_ns = since - 1, since_ns + 1000 end
    end
    return deficit - refill, now, since, since_ns
  end

  function token_bucket_integer.take(s, requests, _, period, now, hits, count_rejected)
    local deficit, last, since, since_ns = 0, now, 0, 0
    local carried = s
    if s and s[5] == requests then
      last, since, since_ns, deficit = s[1], s[2], s[3], s[4]
    elseif s then
      deficit, last = token_bucket_integer.settled(s[1], s[2], s[3], s[4], s[5], period, now)
      if deficit > 0 then
        deficit = deficit + requests - s[5]
        if deficit < 0 then deficit = 0 end
        if deficit > 2 * requests then deficit = 2 * requests end
      end
      carried = deficit > 0 and {last, 0, 0, deficit, requests}
    end
    deficit, last, since, since_ns = token_bucket_integer.settled(last, since, since_ns, deficit, requests, period, now)
    local allowed, taken = true, false
    if hits < 0 then
      deficit, taken = deficit + hits, true
      if deficit < 0 then deficit = 0 end
    elseif deficit + hits <= requests then
      deficit, taken = deficit + hits, hits > 0
    elseif hits > 0 and requests == 0 then
      return carried, false
    else
      allowed = false
      if count_rejected and hits > 0 then
        deficit, taken = deficit + hits, true
        if deficit > 2 * requests then deficit = 2 * requests end
      end
    end
    if taken then return deficit > 0 and {last, since, since_ns, deficit, requests}, allowed end
    return carried, allowed
  end

  function token_bucket_integer.fresh(s, period)
    return s[1] + muldiv(period, s[4], s[5]) + 2
  end

  if general == 1 then
    function token_bucket_integer.correct(s, requests, _, period, now, delta, at, whole)
      if delta > 0 then
        local next = token_bucket_integer.take(s, requests, requests, period, at, delta, true)
        return next
      end
      if not s then return s end
      local deficit, last, since, since_ns = token_bucket_integer.settled(s[1], s[2], s[3], s[4], s[5], period, now)
      local back = -delta
      if last > at then
        local gained = muldiv(last - at, s[5], period) + 1
        if gained > whole then back = back - (gained - whole) end
      end
      if back > 0 then deficit = deficit - back end
      return deficit > 0 and {last, since, since_ns, deficit, s[5]}
    end
  end

  algorithms[5] = token_bucket_integer
end
