package descriptors

// Detailed reports whether metrics distinguish the descriptors of this rule by values: by
// detailed_metric of the rule, or by value_to_metric of a level. See [Rule.AppendMetricValue].
func (r *Rule) Detailed() bool { return r.detailed }

// AppendMetricValue appends to dst the name of a descriptor in metrics: for each level a text
// `key_value`, joined by ".". The rule must match the descriptor. With detailed_metric of the rule
// or value_to_metric of a level, the value comes from the entry. Otherwise the value is as
// configured: the pattern of a wildcard, nothing for a key alone. A level with share_threshold
// always shows the pattern. The entry that names a holder is left out. envoyproxy/ratelimit uses
// the same names, behind the domain.
//
// The text is for people: two descriptors may have the same text, and values may hold any bytes.
func (r *Rule) AppendMetricValue(dst []byte, entries []Entry) []byte {
	entries = r.WithoutHolder(entries)
	for i := range entries {
		if i > 0 {
			dst = append(dst, '.')
		}
		dst = r.appendLevel(dst, i, entries[i])
	}
	return dst
}

// appendLevel appends the text of one level: `key_value`, or the key alone when there is no value.
func (r *Rule) appendLevel(dst []byte, i int, e Entry) []byte {
	if i < len(r.Levels) {
		if l := &r.Levels[i]; l.ShareThreshold || !r.DetailedMetric && !l.ValueToMetric {
			e.Value = l.Value
		}
	}
	dst = append(dst, e.Key...)
	if e.Value == "" {
		return dst
	}
	return append(append(dst, '_'), e.Value...)
}

// MetricLevels returns the texts that AppendMetricValue joins. Without entries, the values are as
// configured. A domain's default has no levels.
func (r *Rule) MetricLevels(entries []Entry) []string {
	if entries == nil {
		entries = make([]Entry, len(r.Levels))
		for i := range r.Levels {
			entries[i] = Entry{Key: r.Levels[i].Key, Value: r.Levels[i].Value}
		}
	}
	entries = r.WithoutHolder(entries)
	levels := make([]string, 0, len(entries))
	for i := range entries {
		levels = append(levels, string(r.appendLevel(nil, i, entries[i])))
	}
	return levels
}
