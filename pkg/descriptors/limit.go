package descriptors

import (
	"cmp"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// limit is a decoded rate_limit.
type limit struct {
	Limit
	unlimited bool
	replaces  []string
	at        value
}

// limits decodes the limits of a descriptor.
func (t *tree) limits(fs fields) []limit {
	one, isOne := fs.get("rate_limit")
	many, isMany := fs.get("rate_limits")
	if isOne && isNull(one) {
		t.warn(one, one.line, "is empty: the descriptor has no limit")
		isOne = false
	}
	if isOne && isMany {
		t.fail(many, "stands beside rate_limit: put all limits of the descriptor in rate_limits")
	}
	var all []limit
	if isOne {
		if l, ok := t.limit(one, limitForm); ok {
			all = append(all, l)
		}
	}
	if !isMany {
		return all
	}
	items := t.items(many, "a list of limits")
	if isNull(many) || many.node.Kind == yaml.SequenceNode && len(many.node.Content) == 0 {
		t.fail(many, "is empty, must have at least one limit")
	}
	for _, item := range items {
		l, ok := t.limit(item, ownLimitForm)
		if !ok {
			continue
		}
		if l.unlimited && len(items) > 1 {
			t.fail(item, "is unlimited beside other limits: must be the only one")
			continue
		}
		if i := slices.IndexFunc(all, func(x limit) bool { return same(x.Limit.Limit, l.Limit.Limit) }); i >= 0 {
			t.fail(item, "is the same limit again%s: limits of one descriptor must differ", line(", as in line %d", all[i].at.line))
			continue
		}
		all = append(all, l)
	}
	return all
}

// same reports whether two limits always decide alike.
func same(a, b algorithms.Limit) bool {
	return a.Algorithm == b.Algorithm && a.Period == b.Period && a.Requests == b.Requests && a.Capacity() == b.Capacity()
}

// setLimits gives a rule its limits.
func (t *tree) setLimits(rule *Rule, all []limit) {
	for i, l := range all {
		for _, name := range l.replaces {
			if !slices.Contains(rule.Replaces, name) {
				rule.Replaces = append(rule.Replaces, name)
			}
		}
		if i == 0 {
			rule.Name = l.Name
		} else if rule.Name != l.Name {
			rule.Name = ""
		}
		if l.unlimited {
			rule.Unlimited = true
			continue
		}
		ordinal := 1
		if t.options.OriginalKeys && len(all) > 1 {
			ordinal = 2 // no key of the first is one of the original's
		}
		for _, x := range rule.Limits {
			if x.Algorithm == l.Algorithm && x.Period == l.Period {
				ordinal++
			}
		}
		own := NewLimit(l.Limit.Limit, l.Unit, l.Multiplier, l.CountRejected, ordinal)
		own.Name, own.OnStoreError = l.Name, cmp.Or(l.OnStoreError, t.defaults.onStoreError)
		rule.Limits = append(rule.Limits, own)
	}
	for _, l := range all {
		t.names[l.Name] = true
	}
}

// limit decodes one limit; false when there is none that could be told.
func (t *tree) limit(v value, f form) (limit, bool) {
	fs, ok := t.fields(v, f)
	if !ok {
		return limit{}, false
	}
	before := len(t.errs)
	l := limit{at: v, unlimited: t.flag(fs, "unlimited")}
	if at, ok := fs.get("name"); ok {
		l.Name, _ = t.text(at)
	}
	if at, ok := fs.get("replaces"); ok {
		l.replaces = t.readReplaces(at, l.Name)
	}
	if at, ok := fs.get("requests_per_unit"); ok && !isNull(at) {
		l.Requests, _ = t.count(at, 0)
	} else if !l.unlimited && len(t.errs) == before {
		t.warn(v, v.line, "has no requests_per_unit: that is 0, and denies every hit")
	}
	if l.unlimited {
		t.checkUnlimited(fs)
		return l, len(t.errs) == before
	}
	l.Algorithm = t.defaults.algorithm
	if at, ok := fs.get("algorithm"); ok {
		l.Algorithm = t.algorithm(at)
	}
	t.readPeriod(v, fs, &l.Limit)
	if at, ok := fs.get("burst"); ok {
		t.readBurst(at, &l.Limit)
	}
	l.CountRejected = l.Algorithm == algorithms.FixedWindow && !t.options.DropRejected
	if t.defaults.countRejected != nil {
		l.CountRejected = *t.defaults.countRejected
	}
	if at, ok := fs.get("count_rejected"); ok {
		l.CountRejected = t.countRejected(at)
	}
	l.OnStoreError = t.onStoreError(fs)
	if l.Algorithm == algorithms.SlidingWindowLog && l.Requests > t.options.MaxLogEntries {
		at, _ := fs.get("requests_per_unit")
		t.fail(at, "is %d, must be at most %d for sliding_window_log, which remembers every hit: use sliding_window_counter",
			l.Requests, t.options.MaxLogEntries)
	}
	if most := int64(l.Period); l.Algorithm == algorithms.TokenBucketInteger && most > 0 && int64(l.Requests) > most {
		at, _ := fs.get("requests_per_unit")
		t.fail(at, "is %d, must be at most %d for token_bucket_integer, which refills at most a token per nanosecond", l.Requests, most)
	}
	if len(t.errs) == before && l.Algorithm != 0 {
		if err := l.Validate(); err != nil {
			t.fail(v, "%v", err)
		}
	}
	return l, len(t.errs) == before
}

// checkUnlimited records what makes no sense beside `unlimited: true`.
func (t *tree) checkUnlimited(fs fields) {
	for _, f := range fs {
		switch f.key {
		case "unit":
			// The reference accepts here what is no unit.
			if name, ok := t.text(f.value); ok {
				if _, ok := ParseUnit(name); ok {
					t.failKey(f.value, f.keyLine, "stands beside unlimited, must be left out")
				} else {
					t.warn(f.value, f.keyLine, "has no effect beside unlimited")
				}
			}
		case "unit_multiplier", "period", "algorithm", "burst", "count_rejected", "on_store_error":
			t.failKey(f.value, f.keyLine, "stands beside unlimited, must be left out")
		}
	}
}

// countRejected decodes whether denied hits count. Empty is neither: it would not be the default.
func (t *tree) countRejected(v value) bool {
	if isNull(v) {
		t.fail(v, "is empty, must be true or false")
		return false
	}
	return t.boolean(v)
}

// algorithm decodes the name of an algorithm; 0 when there is none of that name.
func (t *tree) algorithm(v value) algorithms.Algorithm {
	name, ok := t.text(v)
	if !ok {
		return 0
	}
	a, err := algorithms.ParseAlgorithm(name)
	if err != nil {
		t.fail(v, "%s is not an algorithm, must be one of %s", quote(name), algorithms.Names())
		return 0
	}
	return a
}

// readReplaces decodes the names of the limits that one of this name replaces.
func (t *tree) readReplaces(v value, own string) []string {
	var names []string
	for _, item := range t.items(v, "a list of maps with a name each") {
		fs, ok := t.fields(item, replacesForm)
		if !ok {
			continue
		}
		at, given := fs.get("name")
		if !given {
			at = item.under("name")
		}
		name := ""
		if given {
			if name, ok = t.text(at); !ok {
				continue
			}
		}
		switch name {
		case "":
			t.fail(at, "is missing or empty, must be the name of the limits to replace")
		case own:
			t.fail(at, "is the limit's own name %s, must be that of others", quote(name))
		default:
			names = append(names, name)
			t.replaces = append(t.replaces, replaced{name, at})
		}
	}
	return names
}
