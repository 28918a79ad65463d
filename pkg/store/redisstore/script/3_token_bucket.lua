if uses_bucket == 1 then
  -- {instant of the last charge, deficit in whole hits, and the rest in 1/period hits, requests, capacity}
  local token_bucket = {format = '<I7I5I7I4I4'}

  -- settled returns the deficit of a state at an instant.
  function token_bucket.settled(s, period, now)
    local whole, part = s[2], s[3]
    if now > s[1] then
      local q, r = muldiv(now - s[1], s[4], period)
      whole, part = whole - q, part - r
      if part < 0 then whole, part = whole - 1, part + period end
      if whole < 0 then whole, part = 0, 0 end
    end
    return whole, part
  end

  function token_bucket.take(s, requests, capacity, period, now, hits, count_rejected)
    local whole, part, held, at, used = 0, 0, now, now, false
    local whole_was, part_was
    if s then
      whole, part = token_bucket.settled(s, period, now)
      if s[1] > now then held = s[1] end
      used = whole > 0 or part > 0
      whole_was, part_was = whole, part
      if used and s[5] ~= capacity then
        whole = whole + capacity - s[5]
        if whole < 0 then whole, part = 0, 0 end
        if whole >= 2 * capacity then whole, part = 2 * capacity, 0 end
      end
      if whole > 0 or part > 0 then at = held end
    end

    local allowed, taken = true, false
    if hits < 0 then
      local had = whole > 0 or part > 0
      whole = whole + hits
      if whole < 0 then whole, part = 0, 0 end
      taken = had or at ~= held
    elseif hits == 0 then
      allowed = whole < capacity or whole == capacity and part == 0
    elseif requests == 0 then
      allowed = false
    else
      local after = whole + hits
      if after < capacity or after == capacity and part == 0 then
        whole, taken = after, true
      else
        allowed = false
        if count_rejected then
          local part_is = part
          if after >= 2 * capacity then after, part_is = 2 * capacity, 0 end
          taken = after ~= whole or part_is ~= part -- not where there was all that debt before
          whole, part = after, part_is
        end
      end
    end

    if not used or s[5] <= capacity then
      if used and not taken and s[4] == requests and s[5] == capacity then return s, allowed end
      return (whole > 0 or part > 0) and {at, whole, part, requests, capacity}, allowed
    end
    -- The bucket was larger: the larger capacity goes on to say when it is full.
    if requests == 0 then return s, allowed end
    if not taken then
      if s[4] == requests then return s, allowed end
      return {held, whole_was, part_was, requests, s[5]}, allowed
    end
    return {at, whole + s[5] - capacity, part, requests, s[5]}, allowed
  end

  function token_bucket.fresh(s, period)
    local q, r = muldiv(period, s[2], s[4])
    return s[1] + q + floor((r + s[3]) / s[4]) + 1
  end

  if general == 1 then
    -- correct gives back hits taken at an earlier instant, when the deficit was that much. What the bucket has gained since then
    -- and would not have gained without them, as it would have been full, is not given back.
    function token_bucket.correct(s, requests, capacity, period, now, delta, at, whole, part)
      if delta > 0 then
        local next = token_bucket.take(s, requests, capacity, period, at, delta, true)
        return next
      end
      if not s then return s end
      if s[1] > now then now = s[1] end
      local w, p = token_bucket.settled(s, period, now)
      local excess, rest = 0, 0
      if now > at then
        local q, r = muldiv(now - at, s[4], period)
        excess, rest = q - whole, r - part
        if rest < 0 then excess, rest = excess - 1, rest + period end
        if excess < 0 then excess, rest = 0, 0 end
      end
      local back, back_part = -delta - excess, -rest
      if back_part < 0 then back, back_part = back - 1, back_part + period end
      if back < 0 then return s end
      w, p = w - back, p - back_part
      if p < 0 then w, p = w - 1, p + period end
      if w < 0 then w, p = 0, 0 end
      return (w > 0 or p > 0) and {now, w, p, s[4], s[5]}
    end
  end

  algorithms[2] = token_bucket
end
