package descriptors

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Limit is one limit of a rule.
type Limit struct {
	algorithms.Limit

	Name          string       // as configured, for replaces and for the answer; "" for no name
	CountRejected bool         // denied hits count too
	OnStoreError  OnStoreError // of the limit, else of its rule, else of the document's defaults
	Sharing       Sharing      // of the limit, else of the document's defaults
	Unit          Unit         // as configured; for a period, the largest unit that divides it, else UnitUnknown
	Multiplier    uint32       // Period in Units, at least 1; 0 when the unit is UnitUnknown

	// AtMost is how long a holder is known at most, a millisecond to algorithms.MaxPeriod; 0 for a
	// limit without holders. See Rule.Begin.
	AtMost time.Duration

	TableLine int // of the table's line that has the numbers, see Rule.LimitFor; 0: the numbers are the rule's own

	suffix string  // ends a key: which limit of the rule this is
	tabled *tabled // nil without a table
}

// hasTable is no flag, and stands before the meaning of a table.
const hasTable = 2

// appendMeaning appends all exported fields of a limit in a rule, and the meaning of its table.
func (l *Limit) appendMeaning(dst []byte) []byte {
	dst = appendSized(dst, l.Name)
	if l.tabled != nil {
		dst = append(dst, hasTable)
		dst = append(dst, l.tabled.meaning[:]...)
	}
	dst = appendFlags(dst, l.CountRejected)
	for _, n := range [...]uint64{
		uint64(l.Algorithm), uint64(l.Requests), uint64(l.Period), uint64(l.Burst),
		uint64(l.OnStoreError), uint64(l.Sharing), uint64(l.Unit), uint64(l.Multiplier), uint64(l.AtMost),
	} {
		dst = binary.AppendUvarint(dst, n)
	}
	return dst
}

// limit is a decoded rate_limit.
type limit struct {
	Limit
	unlimited bool
	replaces  []string
	hold      *hold // nil without
	at        value
	tableAt   value // of the name of its table
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
		same := slices.IndexFunc(all, func(x limit) bool {
			return x.Algorithm == l.Algorithm && x.Period == l.Period && x.Requests == l.Requests && x.Capacity() == l.Capacity() && x.Table() == l.Table()
		})
		switch {
		case l.unlimited && len(items) > 1:
			t.fail(item, "is unlimited beside other limits: must be the only one")
		case same >= 0:
			t.fail(item, "is the same limit again%s: limits of one descriptor must differ", line(", as in line %d", all[same].at.line))
		default:
			all = append(all, l)
		}
	}
	return all
}

// setLimits gives a rule its limits.
func (t *tree) setLimits(rule *Rule, all []limit) {
	for i, l := range all {
		t.names[l.Name] = true
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
		ordinal := t.firstOrdinal(len(all))
		for _, x := range rule.Limits {
			if x.Algorithm == l.Algorithm && x.Period == l.Period {
				ordinal++
			}
		}
		if l.hold != nil && rule.Begin == "" {
			rule.Begin, rule.End = l.hold.begin, l.hold.end
		}
		l.suffix = suffixOf(l.Limit.Limit, ordinal)
		l.OnStoreError = cmp.Or(l.OnStoreError, t.defaults.onStoreError)
		l.Sharing = cmp.Or(l.Sharing, t.defaults.sharing)
		rule.Limits = append(rule.Limits, l.Limit)
	}
	t.setSuffixes(rule)
}

// firstOrdinal returns the ordinal of the first limit of an algorithm and a period, in a rule of so
// many limits.
func (t *tree) firstOrdinal(limits int) int {
	if t.options.OriginalKeys && limits > 1 {
		return 2 // AppendOriginalKey refuses keys of a second limit
	}
	return 1
}

// limit decodes one limit; false after a mistake. All options of a limit are read here.
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
	if !l.unlimited {
		l.Algorithm = t.defaults.algorithm
		if at, ok := fs.get("algorithm"); ok {
			l.Algorithm = t.algorithm(at)
		}
	}
	slots := t.isConcurrency(fs, &l)
	requests, _ := fs.get("requests_per_unit")
	switch {
	case slots:
		t.readSlots(v, fs, f, &l)
	case fs.has("requests_per_unit"):
		l.Requests, _ = t.count(requests, 0)
	case !l.unlimited && len(t.errs) == before:
		t.warn(v, v.line, "has no requests_per_unit: that is 0, and denies every hit")
	}
	if l.unlimited {
		t.checkUnlimited(fs)
		return l, len(t.errs) == before
	}
	if !slots {
		t.readRate(v, fs, &l)
	}
	_, holds := fs.get("hold")
	l.CountRejected = l.Algorithm == algorithms.FixedWindow && !t.options.DropRejected && !holds
	if t.defaults.countRejected != nil && l.Algorithm != algorithms.Concurrency {
		l.CountRejected = *t.defaults.countRejected
	}
	if at, ok := fs.get("count_rejected"); ok {
		l.CountRejected = t.countRejected(at)
	}
	l.OnStoreError = t.onStoreError(fs)
	l.Sharing = t.sharingOf(fs, &l.Limit)
	if f != defaultForm {
		t.readHold(v, fs, &l)
		t.readTable(fs, &l)
	}

	if l.Algorithm == algorithms.SlidingWindowLog && l.Requests > t.options.MaxLogEntries {
		t.fail(requests, "is %d, must be at most %d for sliding_window_log, which remembers every hit: use sliding_window_counter",
			l.Requests, t.options.MaxLogEntries)
	}
	if l.Algorithm == algorithms.TokenBucketInteger && l.Period > 0 && int64(l.Requests) > int64(l.Period) {
		t.fail(requests, "is %d, must be at most %d for token_bucket_integer, which refills at most a token per nanosecond",
			l.Requests, int64(l.Period))
	}
	if len(t.errs) == before && l.Algorithm != 0 {
		if err := l.Validate(); err != nil {
			t.fail(v, "%v", err)
		}
	}
	return l, len(t.errs) == before
}

// checkUnlimited records the options that have no meaning beside `unlimited: true`.
func (t *tree) checkUnlimited(fs fields) {
	_, own := limitForm.keys()
	for _, f := range fs {
		mistake := slices.Contains(own, f.key)
		if f.key == "unit" {
			name, ok := t.text(f.value)
			if _, mistake = ParseUnit(name); ok && !mistake { // the reference accepts any other text here
				t.warn(f.value, f.keyLine, "has no effect beside unlimited")
			}
		}
		if mistake {
			t.failKey(f.value, f.keyLine, "stands beside unlimited, must be left out")
		}
	}
}

// countRejected decodes whether denied hits count. Null is a mistake: it would not mean the
// default.
func (t *tree) countRejected(v value) bool {
	if isNull(v) {
		t.fail(v, "is empty, must be true or false")
		return false
	}
	return t.boolean(v)
}

// algorithm decodes the name of an algorithm; 0 when no algorithm has that name.
func (t *tree) algorithm(v value) algorithms.Algorithm {
	name, ok := t.text(v)
	a, err := algorithms.ParseAlgorithm(name)
	if ok && err != nil {
		t.fail(v, "%s is not an algorithm, must be one of %s", quote(name), algorithms.Names())
	}
	return a
}

// readReplaces decodes the names of the limits that a limit with the name own replaces.
func (t *tree) readReplaces(v value, own string) []string {
	var names []string
	for _, item := range t.items(v, "a list of maps with a name each") {
		fs, ok := t.fields(item, replacesForm)
		if !ok {
			continue
		}
		switch name, at, ok := t.textOf(fs, item, "name"); {
		case !ok:
		case name == "":
			t.fail(at, "is missing or empty, must be the name of the limits to replace")
		case name == own:
			t.fail(at, "is the limit's own name %s, must be the name of another limit", quote(name))
		default:
			names = append(names, name)
			t.replaces = append(t.replaces, replaced{name, at})
		}
	}
	return names
}
