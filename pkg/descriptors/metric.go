package descriptors

// Detailed reports whether metrics tell the descriptors of this rule apart by values of theirs (detailed_metric on the rule,
// or value_to_metric on one of its levels): see [Rule.AppendMetricValue].
func (r *Rule) Detailed() bool { return r.detailed }

// AppendMetricValue appends to dst what metrics call a descriptor that the rule matches: a text `key_value` per level,
// joined by ".". With detailed_metric the values are those of the entries. Otherwise they are as configured (the pattern of a
// wildcard; nothing for a key without a value) except at the levels with value_to_metric. Levels with share_threshold always
// give their pattern. So does envoyproxy/ratelimit, which writes the domain in front.
//
// The text is for people: different descriptors may have the same one, and values may hold any bytes.
func (r *Rule) AppendMetricValue(dst []byte, entries []Entry) []byte {
	for i := range entries {
		if i > 0 {
			dst = append(dst, '.')
		}
		dst = r.appendLevel(dst, i, entries[i])
	}
	return dst
}

// appendLevel appends what metrics call the entry of a level.
func (r *Rule) appendLevel(dst []byte, i int, e Entry) []byte {
	if i >= len(r.levels) {
		return appendKeyValue(dst, e.Key, e.Value)
	}
	l := &r.levels[i]
	if !l.shared && (r.DetailedMetric || l.valueToMetric) {
		return appendKeyValue(dst, e.Key, e.Value)
	}
	return appendKeyValue(dst, e.Key, l.value)
}

// MetricLevels returns the text of each level of a descriptor that the rule matches, of which AppendMetricValue makes one. Without
// entries it is what is configured. A domain's default has none.
func (r *Rule) MetricLevels(entries []Entry) []string {
	if entries == nil {
		entries = make([]Entry, len(r.levels))
		for i := range r.levels {
			entries[i] = Entry{Key: r.levels[i].key, Value: r.levels[i].value}
		}
	}
	levels := make([]string, 0, len(entries))
	for i := range entries {
		levels = append(levels, string(r.appendLevel(nil, i, entries[i])))
	}
	return levels
}

// appendKeyValue appends `key_value`, or the key alone when there is no value.
func appendKeyValue(dst []byte, key, value string) []byte {
	dst = append(dst, key...)
	if value == "" {
		return dst
	}
	return append(append(dst, '_'), value...)
}
