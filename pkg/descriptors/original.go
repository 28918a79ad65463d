package descriptors

import "bytes"

// AppendOriginalKey appends to dst the key of envoyproxy/ratelimit for the same count, without the
// start of the window at the end. The result is "edge_path_/search_client_id_c1_" for this key,
// made by either AppendKey:
//
//	4:edge|4:path=7:/search|9:client_id=2:c1#fixed_window/1s
//
// For a key without an equivalent, the result is false and dst unchanged: the original counts only
// fixed windows of its units, and only one limit per rule. The original joins texts without their
// lengths, so that different keys may have the same result; the unit is not part of the result.
func AppendOriginalKey(dst, key []byte) (name []byte, counted bool) {
	before := len(dst)
	text, mark, rest := cutText(key)
	if mark != ':' {
		return dst, false
	}
	dst = append(append(dst, text...), '_')
	separator := byte('|') // of entries, and then '=' of the value
	for ; len(rest) > 0 && rest[0] == separator; separator ^= '|' ^ '=' {
		if text, mark, rest = cutText(rest[1:]); mark == 0 {
			return dst[:before], false
		}
		dst = append(append(dst, text...), '_')
	}
	if separator != '|' || !isOriginal(rest) {
		return dst[:before], false
	}
	return dst, true
}

// isOriginal reports whether the original has a limit like the one at the end of a key.
func isOriginal(suffix []byte) bool {
	period, is := bytes.CutPrefix(suffix, []byte("#fixed_window/"))
	if !is {
		return false
	}
	switch string(period) {
	case "1s", "1m", "1h", "1d", "7d", "30d", "365d":
		return true
	}
	return false
}
