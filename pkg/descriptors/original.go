package descriptors

import "bytes"

// AppendOriginalKey appends to dst the text by which envoyproxy/ratelimit calls what a key that either AppendKey made counts,
// as far as the start of the window, which it puts behind it: "edge_path_/search_client_id_c1_" of the key
//
//	4:edge|4:path=7:/search|9:client_id=2:c1#fixed_window/1s
//
// It reports false, and leaves dst as it is, when the original counts nothing so: when the limit is no fixed window of one of
// its units, or the second of its kind in a rule, or when the key is none of theirs. The texts stand side by side without their
// lengths, so that different keys may have the same one; the unit is not part of it.
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

// isOriginal reports whether the end of a key, which names the limit, is that of a limit that the original has.
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
