if uses_counter == 1 then
  -- What a window of envoyproxy/ratelimit is in Redis: a decimal number, whose key names the window. {count, milliseconds to
  -- live}, as it counts from the last charge on; 0 where nothing was charged yet.
  local counter = {}
  local MOST = 999999999999999

  function counter.read(raw)
    if #raw > 15 or not raw:find('^%d+$') then error('a value that is not a count') end
    return {tonumber(raw), 0}
  end

  function counter.write(s) return string.format('%.0f', s[1]) end

  function counter.take(s, requests, jitter, period, _, hits, count_rejected)
    local count, alive = 0, math.ceil(period / 1000) + jitter * 1000
    if s then
      count = s[1]
      if s[2] > alive then alive = s[2] end
    end
    if hits < 0 then
      count = count + hits
      return count > 0 and {count, alive}, true
    end
    if hits == 0 then return s, count <= requests end
    if count + hits <= requests then return {count + hits, alive}, true end
    if count_rejected then return {math.min(count + hits, MOST), alive}, false end
    return s, false
  end

  if general == 1 then
    function counter.correct(s, _, jitter, period, _, difference)
      local count = (s and s[1] or 0) + difference
      return count > 0 and {math.min(count, MOST), math.ceil(period / 1000) + jitter * 1000}
    end
  end

  algorithms[6] = counter
end
