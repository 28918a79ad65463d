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
		if i >= len(r.levels) {
			dst = appendKeyValue(dst, entries[i].Key, entries[i].Value)
			continue
		}
		l := &r.levels[i]
		switch {
		case l.shared:
			dst = appendKeyValue(dst, entries[i].Key, l.value)
		case r.DetailedMetric || l.valueToMetric:
			dst = appendKeyValue(dst, entries[i].Key, entries[i].Value)
		default:
			dst = appendKeyValue(dst, entries[i].Key, l.value)
		}
	}
	return dst
}

// appendKeyValue appends `key_value`, or the key alone when there is no value.
func appendKeyValue(dst []byte, key, value string) []byte {
	dst = append(dst, key...)
	if value == "" {
		return dst
	}
	return append(append(dst, '_'), value...)
}
