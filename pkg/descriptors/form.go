package descriptors

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/spelling"
)

// form is a kind of map in a document: it decides which keys the map may have.
type form uint8

const (
	documentForm   form = iota
	descriptorForm      // an element of descriptors
	limitForm           // rate_limit
	ownLimitForm        // an element of rate_limits: the keys of limitForm in a map that only Weir knows
	defaultForm         // default: the same, without holders
	holdForm            // hold
	defaultsForm
	replacesForm // an element of replaces
	alignForm    // align
	pricesForm   // prices
	estimateForm // estimate of a hold
	learnedForm  // learned of an estimate
	overlayFileForm
	overlayForm       // an element of overlay
	selectorForm      // for
	selectorLevelForm // an element of path
	overlaySetForm    // set
	scheduleForm      // an element of schedule
	matchForm         // match, and a pattern in it
	groupForm         // group_by of a match
	escalateForm      // escalate
)

// isOwn reports whether only Weir knows the map.
func (f form) isOwn() bool {
	return f != documentForm && f != descriptorForm && f != limitForm && f != replacesForm
}

// keys returns the keys of a form: the keys of envoyproxy/ratelimit, and Weir's own keys. A new
// option is a key here, a field in descriptors.go or limit.go, and a line in descriptor.go or
// limit.go.
func (f form) keys() (original, own []string) {
	switch f {
	case documentForm:
		return []string{"domain", "descriptors"}, []string{"default", "defaults"}
	case descriptorForm:
		return []string{
			"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric",
			"share_threshold", "metadata",
		}, []string{"match", "rate_limits", "on_store_error", "group"}
	case limitForm, ownLimitForm, defaultForm:
		original = []string{"requests_per_unit", "unit", "unlimited", "name", "replaces"}
		own = []string{
			"unit_multiplier", "period", "algorithm", "burst", "count_rejected", "on_store_error", "sharing", "warn_at", "align", "schedule", "escalate",
		}
		if f != defaultForm {
			own = append(own, "max_in_flight", "hold", "table", "budget", "prices")
		}
		return original, own
	case holdForm:
		return nil, []string{"begin", "end", "pair", "at_most", "on_run_out", "estimate"}
	case estimateForm:
		return nil, []string{"learned"}
	case learnedForm:
		return nil, []string{"quantile", "ceiling"}
	case overlayFileForm:
		return nil, []string{"overlay"}
	case overlayForm:
		return nil, []string{"for", "set"}
	case selectorForm:
		return nil, []string{"domain", "path", "name", "unit"}
	case selectorLevelForm:
		return nil, []string{"key", "value"}
	case overlaySetForm:
		return nil, []string{
			"algorithm", "burst", "align", "count_rejected", "hold", "sharing", "on_store_error", "warn_at", "escalate", "group",
		}
	case matchForm:
		return nil, []string{"prefix", "regex", "path", "cidr", "cidr_file", "not", "any_of", "count_by", "group_by"}
	case groupForm:
		return nil, []string{"v4", "v6"}
	case pricesForm:
		return nil, []string{"table", "unknown"}
	case alignForm:
		return nil, []string{"to", "zone", "day", "at", "starts"}
	case scheduleForm:
		return nil, []string{"from", "until", "days", "hours", "zone", "requests_per_unit", "max_in_flight", "budget", "burst", "factor"}
	case escalateForm:
		return nil, []string{"after", "within", "block", "forget"}
	case defaultsForm:
		return nil, []string{"algorithm", "count_rejected", "on_store_error", "sharing"}
	default:
		return []string{"name"}, nil
	}
}

// home names the map that a key belongs in, "" for an unknown key, and reports whether
// envoyproxy/ratelimit knows the key. That service accepts its keys in every map, and ignores keys
// that have no meaning there.
func home(key string) (name string, original bool) {
	if key == "on_store_error" {
		return "defaults, a descriptor or a rate_limit", false
	}
	homes := []string{
		descriptorForm: "a descriptor", limitForm: "a rate_limit", documentForm: "the document itself", holdForm: "the hold of a rate_limit",
		alignForm: "the align of a rate_limit", pricesForm: "the prices of a rate_limit",
		estimateForm: "the estimate of a hold", learnedForm: "the learned of an estimate", scheduleForm: "the schedule of a rate_limit",
		matchForm: "the match of a descriptor", groupForm: "the group_by of a match", escalateForm: "the escalate of a rate_limit",
	}
	for _, f := range []form{
		descriptorForm, limitForm, documentForm, holdForm, alignForm, pricesForm, estimateForm, learnedForm, scheduleForm, matchForm, groupForm,
		escalateForm,
	} {
		switch original, own := f.keys(); {
		case slices.Contains(original, key):
			return homes[f], true
		case slices.Contains(own, key):
			return homes[f], false
		}
	}
	return "", false
}

// fields is the fields of a map of a form.
type fields []field

// fields returns the fields that this form may have, and records the others; false: v is no map.
func (r *reader) fields(v value, f form) (fields, bool) {
	all, ok := r.pairs(v)
	if !ok {
		return nil, false
	}
	known, ok := r.keys[f]
	if !ok {
		known[0], known[1] = f.keys()
		r.keys[f] = known
	}
	original, own := known[0], known[1]
	var owner field // the known key before
	return slices.DeleteFunc(all, func(x field) bool {
		if slices.Contains(original, x.key) || slices.Contains(own, x.key) {
			owner = x
			return false
		}
		if r.stopped {
			return true
		}
		if isNull(x.value) && v.node.Style&yaml.FlowStyle != 0 && owner.node != nil && owner.node.Kind == yaml.ScalarNode {
			r.failKey(x.value, x.keyLine, "is a key of its own to YAML: %s", bracketed(owner, x.key))
			return true
		}
		keys := slices.Concat(original, own)
		name, original := home(x.key)
		near, words, meant := nearest(x.key, keys), f.foreign(x.key), meantKey(f, x.key)
		switch {
		case original && f == limitForm && (x.key == "shadow_mode" || x.key == "quota_mode"):
			r.warn(x.value, x.keyLine, "belongs in the descriptor, beside rate_limit: here it has no effect, and the limit enforces")
		case original && !f.isOwn():
			r.warn(x.value, x.keyLine, "belongs in %s, has no effect here", name)
		case name != "" && meant == "":
			r.failKey(x.value, x.keyLine, "belongs in %s, must not be here", name)
		case name != "" && f == descriptorForm:
			r.failKey(x.value, x.keyLine, "belongs in %s: %s", name, meant)
		case words != "":
			r.failKey(x.value, x.keyLine, "is a word of another product, must be %s", words)
		case meant != "":
			r.failKey(x.value, x.keyLine, "is not a key that is known here: %s", meant)
		case near != "":
			r.failKey(x.value, x.keyLine, "is not a key that is known here, did you mean %s?", near)
		default:
			r.failKey(x.value, x.keyLine, "is not a key that is known here, must be one of %s", strings.Join(keys, ", "))
		}
		return true
	}), true
}

// bracketed says how to write a value that goes on behind a comma in a map of one line.
func bracketed(f field, more string) string {
	both := written(f.node.Value) + ", " + written(more)
	switch f.key {
	case "cidr", "any_of", "days", "count_by", "warn_at":
		return "several stand in brackets, such as " + f.key + ": [" + both + "]"
	case "not":
		return "several stand in brackets, such as not: {any_of: [" + both + "]}"
	case "value":
		return "one of several values is match: {any_of: [" + both + "]}, in place of value"
	case "prefix", "path", "regex":
		return fmt.Sprintf("one of several is any_of: [{%s: %s}, {%s: %s}]", f.key, written(f.node.Value), f.key, written(more))
	default:
		return "a text with a comma stands in quotes, such as " + f.key + `: "` + f.node.Value + ", " + more + `"`
	}
}

func (fs fields) get(key string) (value, bool) {
	for i := range fs {
		if fs[i].key == key {
			return fs[i].value, true
		}
	}
	return value{}, false
}

// has reports whether the map has a value other than null for one of the keys.
func (fs fields) has(keys ...string) bool {
	return slices.ContainsFunc(fs, func(f field) bool { return slices.Contains(keys, f.key) && !isNull(f.value) })
}

// nearest returns the key that the author probably meant, "" when no key is near. Near means that
// at most a third of the letters differ, apart from case, `_` and `-`.
func nearest(key string, keys []string) string {
	if len(key) > spelling.MaxBytes {
		return ""
	}
	plain := func(s string) string { return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)) }
	best, shortest, written := "", 3, spelling.New(plain(key))
	for _, k := range keys {
		if d := written.Distance(plain(k)); d < shortest && 3*d <= len(plain(k))+1 {
			best, shortest = k, d
		}
	}
	return best
}
