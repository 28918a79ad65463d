if uses_window == 1 then
  local fixed_window = {format = '<I7I7'} -- {instant of the last charge, count}

  function fixed_window.take(s, requests, _, period, now, hits, count_rejected)
    local count = 0
    if s then
      if s[1] > now then now = s[1] end
      if floor(s[1] / period) == floor(now / period) then count = s[2] end
    end
    if hits < 0 then
      count = count + hits
      return count > 0 and {now, count}, true
    end
    if hits == 0 then return s, count <= requests end
    if count + hits <= requests then return {now, count + hits}, true end
    if count_rejected then
      count = count + hits
      if count >= EXACT then count = EXACT - 1 end
      return {now, count}, false
    end
    return s, false
  end

  function fixed_window.fresh(s, period) return (floor(s[1] / period) + 1) * period end

  if general == 1 then
    function fixed_window.correct(s, _, _, period, now, delta, at)
      if s and s[1] > now then now = s[1] end
      if floor(at / period) ~= floor(now / period) then return s end
      local count = delta
      if s and floor(s[1] / period) == floor(now / period) then count = count + s[2] end
      if count >= EXACT then count = EXACT - 1 end
      return count > 0 and {now, count}
    end
  end

  algorithms[1] = fixed_window
end
