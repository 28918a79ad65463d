package descriptors

import (
	"slices"
	"strings"
)

// form is a kind of map in a document: which keys it may have.
type form uint8

const (
	documentForm   form = iota
	descriptorForm      // an element of descriptors
	limitForm           // rate_limit
	ownLimitForm        // an element of rate_limits, and default: those of limitForm, but the reference knows no such map
	defaultsForm
	replacesForm // an element of replaces
)

// keys returns the keys of a form, in the order in which messages list them.
func (f form) keys() []string {
	switch f {
	case documentForm:
		return []string{"domain", "descriptors", "default", "defaults"}
	case descriptorForm:
		return []string{
			"key", "value", "rate_limit", "rate_limits", "descriptors", "shadow_mode", "quota_mode", "detailed_metric",
			"value_to_metric", "share_threshold", "metadata", "on_store_error",
		}
	case limitForm, ownLimitForm:
		return []string{
			"requests_per_unit", "unit", "unit_multiplier", "period", "algorithm", "burst", "count_rejected", "unlimited",
			"name", "replaces", "on_store_error",
		}
	case defaultsForm:
		return []string{"algorithm", "count_rejected", "on_store_error"}
	default:
		return []string{"name"}
	}
}

// lenient reports whether the form is one of the reference, which takes every key it knows in every map and ignores it where
// it has no meaning.
func (f form) lenient() bool { return f != ownLimitForm && f != defaultsForm }

// known reports whether the reference knows the key.
func known(key string) bool {
	switch key {
	case "domain", "descriptors", "key", "value", "rate_limit", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric",
		"share_threshold", "metadata", "requests_per_unit", "unit", "unlimited", "name", "replaces":
		return true
	}
	return false
}

// home names the maps that a key belongs in, "" when there is none.
func home(key string) string {
	switch {
	case key == "on_store_error":
		return "defaults, a descriptor or a rate_limit"
	case slices.Contains(descriptorForm.keys(), key):
		return "a descriptor"
	case slices.Contains(limitForm.keys(), key):
		return "a rate_limit"
	case slices.Contains(documentForm.keys(), key):
		return "the document itself"
	}
	return ""
}

// fields is the fields of a map of a form.
type fields []field

// fields returns the fields that a map of this form may have, and records what is wrong with the others; false when it is
// no map.
func (r *reader) fields(v value, f form) (fields, bool) {
	all, ok := r.pairs(v)
	if !ok {
		return nil, false
	}
	return slices.DeleteFunc(all, func(x field) bool {
		if slices.Contains(f.keys(), x.key) {
			return false
		}
		where := home(x.key)
		switch {
		case where != "" && known(x.key) && f.lenient():
			r.warn(x.value, x.keyLine, "belongs in %s, has no effect here", where)
		case where != "":
			r.failKey(x.value, x.keyLine, "belongs in %s, must not be here", where)
		default:
			if near := nearest(x.key, f.keys()); near != "" {
				r.failKey(x.value, x.keyLine, "is not a key that is known here, did you mean %s?", near)
				break
			}
			r.failKey(x.value, x.keyLine, "is not a key that is known here, must be one of %s", strings.Join(f.keys(), ", "))
		}
		return true
	}), true
}

// get returns the value of a key; false when the map does not have it.
func (fs fields) get(key string) (value, bool) {
	for i := range fs {
		if fs[i].key == key {
			return fs[i].value, true
		}
	}
	return value{}, false
}

// nearest returns the key that was probably meant, "" when none is near: case, `_` and `-` aside, at most a third of the
// letters differ.
func nearest(key string, keys []string) string {
	if len(key) > 64 {
		return ""
	}
	plain := func(s string) string { return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)) }
	best, least := "", 3
	for _, k := range keys {
		if d := distance(plain(key), plain(k)); d < least && 3*d <= len(plain(k))+1 {
			best, least = k, d
		}
	}
	return best
}

// distance returns in how few steps one text becomes the other by adding, dropping or replacing a byte or by swapping two
// that stand side by side (the optimal string alignment distance).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, replaced)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
