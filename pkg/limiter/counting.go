package limiter

// countsOf returns the counts of a descriptor that matched a rule or has an override; nil for
// others. An override of a rule without limits counts as one without a rule.
func (set *ruleSet) countsOf(r *Request, s *DescriptorStatus) *Counts {
	switch {
	case s.Rule != nil && !(s.Overridden && len(s.Rule.Limits) == 0):
		return set.counts[s.Rule.ID]
	case s.Overridden:
		return set.overrides[r.Domain]
	default:
		return nil
	}
}

// count counts the status of descriptor i.
func (l *Limiter) count(r *Request, v *Verdict, i int) {
	s, set := &v.Statuses[i], v.set
	if s.domain == nil {
		l.requests.noDomain.Add(1)
		return
	}
	c := set.countsOf(r, s)
	if s.Rule == nil {
		l.requests.noMatch.Add(1)
		set.overrides[r.Domain].unmatched.Add(1)
	}
	if c == nil {
		return
	}
	code, near, hits := s.code(), uint64(0), s.Hits
	if s.Hold != nil {
		c.holds.add(v, s)
		hits = s.charged()
	}
	if l.options.NearLimit > 0 && s.Outcome == Limited {
		near = l.near(v, s, hits)
	}
	c.add(code, hits, near)
	if s.Rule != nil && s.Rule.Detailed() && c == set.counts[s.Rule.ID] {
		entries := r.Descriptors[i].Entries
		v.values = s.Rule.AppendMetricValue(v.values[:0], entries)
		c.of(v.values, s.Rule, entries).add(code, hits, near)
	}
}

// near returns the allowed hits above the part of a limit in Options.NearLimit. When another limit
// denied the request, near counts the hits as if they had been charged.
func (l *Limiter) near(v *Verdict, s *DescriptorStatus, hits int64) uint64 {
	if !s.Decision.Allowed || hits <= 0 {
		return 0
	}
	capacity := s.Limit.Capacity()
	after := int64(capacity) - int64(s.Decision.Remaining)
	if v.OverLimit && !s.Limit.CountRejected {
		after += hits
	}
	// envoyproxy/ratelimit rounds in 32 bits.
	from := int64(float32(capacity) * float32(l.options.NearLimit))
	return uint64(min(max(after-from, 0), hits))
}

func (s *DescriptorStatus) code() Code {
	switch {
	case s.Outcome == Unlimited:
		return CodeUnlimited
	case s.Outcome == Replaced:
		return CodeReplaced
	case s.OverLimit:
		return CodeOverLimit
	case s.Shadowed:
		return CodeShadowed
	default:
		return CodeOK
	}
}
