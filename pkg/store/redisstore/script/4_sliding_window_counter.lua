if uses_sliding == 1 then
  local sliding_window_counter = {format = '<I7I5I5'} -- {instant of the last charge, count of its window, count of the one before}

  function sliding_window_counter.windows(s, period, now)
    local current, previous = 0, 0
    if s then
      if s[1] > now then now = s[1] end
      local gone = floor(now / period) - floor(s[1] / period)
      if gone == 0 then current, previous = s[2], s[3] elseif gone == 1 then previous = s[2] end
    end
    return current, previous, now
  end

  function sliding_window_counter.state(current, previous, now)
    return (current > 0 or previous > 0) and {now, current, previous}
  end

  function sliding_window_counter.take(s, requests, _, period, now, hits, count_rejected)
    local current, previous
    current, previous, now = sliding_window_counter.windows(s, period, now)
    if hits < 0 then
      current = current + hits
      if current < 0 then
        previous, current = previous + current, 0
        if previous < 0 then previous = 0 end
      end
      return sliding_window_counter.state(current, previous, now), true
    end
    local carried, rest = 0, 0
    if previous > 0 then carried, rest = muldiv(period - (now - floor(now / period) * period), previous, period) end
    local room = requests - current - hits
    if room >= 0 and (carried < room or carried == room and rest == 0) then
      if hits == 0 then return s, true end
      return {now, current + hits, previous}, true
    end
    local used = current + carried
    if rest > 0 then used = used + 1 end
    if count_rejected and hits > 0 and used < 2 * requests then
      if hits > 2 * requests - used then hits = 2 * requests - used end
      return {now, current + hits, previous}, false
    end
    return s, false
  end

  function sliding_window_counter.fresh(s, period)
    return (floor(s[1] / period) + (s[2] > 0 and 2 or 1)) * period
  end

  if general == 1 then
    function sliding_window_counter.correct(s, requests, _, period, now, delta, at)
      local current, previous
      current, previous, now = sliding_window_counter.windows(s, period, now)
      local gone = floor(now / period) - floor(at / period)
      if gone == 0 then
        if delta > 0 then
          local next = sliding_window_counter.take(s, requests, requests, period, at, delta, true)
          return next
        end
        current = current + delta
        if current < 0 then current = 0 end
      elseif gone == 1 then
        previous = previous + delta
        if previous < 0 then previous = 0 end
        if delta > 0 and previous > 2 * requests then previous = 2 * requests end
      else
        return s
      end
      return sliding_window_counter.state(current, previous, now)
    end
  end

  algorithms[4] = sliding_window_counter
end
