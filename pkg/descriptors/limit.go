package descriptors

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/timespan"
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
	AtMost    time.Duration
	Estimate  Estimate // of a limit with holders
	GivesBack bool     // of a rate limit with holders: held hits come back when AtMost is over without an end

	WarnAt Marks // at which a key gets a notice

	Escalate *Escalate // blocks keys that offend again and again; nil: none is blocked

	Money bool // hits are millionths of a unit of money: the limit is a budget

	TableLine int // of the table's line that has the numbers, see Rule.LimitFor; 0: the numbers are the rule's own

	suffix   string        // ends a key: which limit of the rule this is
	tabled   *tabled       // nil without a table
	schedule *Schedule     // nil without
	overlay  *overlayEntry // that gave the limit words; nil without
	priced   *Table        // of prices; nil without
	others   bool          // priced has a line for models without a line of their own
}

// Each of these is no flag, and stands before the meaning of a part that most limits lack.
const (
	hasTable    = 2
	hasMarks    = 3
	hasCalendar = 4
	hasMoney    = 5
	hasPrices   = 6
	hasEstimate = 7
	givesBack   = 8
	hasSchedule = 9
	hasMatch    = 10 // of a level
	hasEscalate = 11
)

// appendMeaning appends all exported fields of a limit in a rule, and the meaning of its table.
func (l *Limit) appendMeaning(dst []byte) []byte {
	dst = appendSized(dst, l.Name)
	if l.tabled != nil {
		dst = append(dst, hasTable)
		dst = append(dst, l.tabled.meaning[:]...)
	}
	if l.WarnAt != (Marks{}) {
		dst = append(append(dst, hasMarks), l.WarnAt[:]...)
	}
	if l.Calendar != nil {
		dst = appendAlignment(dst, l.Calendar)
	}
	if l.Money {
		dst = append(dst, hasMoney)
	}
	if l.priced != nil {
		dst = append(append(dst, hasPrices), l.priced.meaning[:]...)
	}
	if l.Estimate != (Estimate{}) {
		dst = binary.AppendUvarint(binary.AppendUvarint(append(dst, hasEstimate), uint64(l.Estimate.Quantile)), uint64(l.Estimate.Ceiling))
	}
	if l.GivesBack {
		dst = append(dst, givesBack)
	}
	if l.schedule != nil {
		dst = l.schedule.appendMeaning(dst)
	}
	if l.Escalate != nil {
		dst = l.Escalate.appendMeaning(dst)
	}
	dst = appendFlags(dst, l.CountRejected)
	for _, n := range [...]uint64{
		uint64(l.Algorithm), l.PerPeriod(), uint64(l.Period), uint64(l.Burst),
		uint64(l.OnStoreError), uint64(l.Sharing), uint64(l.Unit), uint64(l.Multiplier), uint64(l.AtMost),
	} {
		dst = binary.AppendUvarint(dst, n)
	}
	return dst
}

// appendAlignment appends all of a calendar but its unit and count, which the limit has.
func appendAlignment(dst []byte, c *algorithms.Calendar) []byte {
	s := c.Spec()
	dst = appendFlags(append(dst, hasCalendar), s.FirstHit)
	dst = append(appendSized(dst, s.Zone.String()), s.Day, byte(s.Starts))
	return binary.AppendUvarint(dst, uint64(s.At))
}

type limit struct {
	Limit
	unlimited  bool
	replaces   []string
	hold       *hold // nil without
	at         value
	escalateAt value
	tableAt    value // of the name of its table
}

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
	if n := len(items); n > MaxLimits {
		t.fail(many, "has %d limits, must have at most %d: a request with 100 descriptors would take too many charges", n, MaxLimits)
		items = items[:MaxLimits]
	}
	for _, item := range items {
		l, ok := t.limit(item, ownLimitForm)
		if !ok {
			continue
		}
		same := slices.IndexFunc(all, func(x limit) bool {
			return x.Algorithm == l.Algorithm && x.Period == l.Period && x.Calendar == l.Calendar && x.PerPeriod() == l.PerPeriod() &&
				x.Capacity() == l.Capacity() && x.Table() == l.Table() && x.Money == l.Money && x.schedule == nil && l.schedule == nil
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
			if x.Algorithm == l.Algorithm && x.Period == l.Period && x.Calendar == l.Calendar {
				ordinal++
			}
		}
		if l.hold != nil && rule.Begin == "" {
			rule.Begin, rule.End = l.hold.begin, l.hold.end
		}
		rule.Priced = rule.Priced || l.priced != nil
		l.suffix = suffixOf(l.Limit.Limit, ordinal)
		t.checkOffenders(rule, &l)
		l.OnStoreError = cmp.Or(l.OnStoreError, t.defaults.onStoreError)
		l.Sharing = cmp.Or(l.Sharing, t.defaults.sharing)
		t.checkDivided(rule, &l)
		if l.OnStoreError == OnStoreErrorAllow && l.WarnAt[0] > 0 && !rule.Shadow {
			t.warn(l.at, l.at.line, "has warn_at and on_store_error: allow, so nothing bounds or counts the budget while Redis does not answer: "+
				"probably local or deny is meant")
		}
		rule.Limits = append(rule.Limits, l.Limit)
	}
	t.setSuffixes(rule)
	setBlockSuffixes(rule)
	t.share(rule)
}

// maxShared bounds the limits that are kept to be shared.
const maxShared = 1000

// share gives a rule with one limit the memory of an equal limit of an earlier rule. Most of many
// rules have one of a few limits. The limits of a rule never change.
func (r *reader) share(rule *Rule) {
	if len(rule.Limits) != 1 {
		return
	}
	first, known := r.limits[rule.Limits[0]]
	switch {
	case known:
		rule.Limits = first
	case len(r.limits) < maxShared:
		r.limits[rule.Limits[0]] = rule.Limits
	}
}

// firstOrdinal returns the first ordinal of an algorithm and period in a rule of so many limits.
func (t *tree) firstOrdinal(limits int) int {
	if t.options.OriginalKeys && limits > 1 {
		return 2 // AppendOriginalKey refuses keys of a second limit
	}
	return 1
}

func (t *tree) limit(v value, f form) (limit, bool) {
	mistakes := len(t.errs) // a misspelled requests_per_unit is one
	if t.badLimit(v) {
		return limit{}, false
	}
	fs, ok := t.fields(v, f)
	if !ok {
		return limit{}, false
	}
	before := len(t.errs)
	fs, entry := t.overlaid(v, fs, f)
	defer t.blame(entry, before)
	l := limit{at: v, unlimited: t.flag(fs, "unlimited")}
	l.overlay = entry
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
	case fs.has("budget"):
		requests, _ = fs.get("budget")
		t.readBudget(requests, fs, &l.Limit)
	case fs.has("requests_per_unit"):
		l.Requests = t.requests(requests)
	case !l.unlimited && len(t.errs) == mistakes:
		t.warn(v, v.line, "has no requests_per_unit: that is 0, and denies every hit")
	}
	if l.unlimited {
		t.checkUnlimited(fs)
		return l, len(t.errs) == before
	}
	if !slots {
		t.readRate(v, fs, &l)
	}
	t.readCountRejected(fs, &l.Limit)
	l.OnStoreError = choice(t, fs, "on_store_error", OnStoreErrorDeny, "local, allow or deny")
	l.Sharing = t.sharingOf(fs, &l.Limit)
	t.readMarks(fs, &l.Limit)
	if !slots {
		t.readAlign(fs, &l.Limit)
	}
	if f != defaultForm {
		t.readHold(v, fs, &l)
		t.readTable(fs, &l)
		t.readPrices(fs, &l)
	}
	t.readSchedule(fs, &l)
	t.readEscalate(fs, &l)
	if text := tooMany(l.Algorithm, l.Requests, l.Period); text != "" {
		if l.Algorithm == algorithms.SlidingWindowLog {
			text += ": use sliding_window_counter"
		}
		t.fail(requests, "%s", text)
	}
	if len(t.errs) == before && l.Algorithm != 0 {
		if err := l.Validate(); err != nil {
			t.fail(v, "%v", err)
		}
	}
	return l, len(t.errs) == before
}

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

// tooMany words why an algorithm cannot have so many requests in a period; "" when it can.
func tooMany(a algorithms.Algorithm, requests uint32, period time.Duration) string {
	switch {
	case a == algorithms.SlidingWindowLog && requests > MaxLogEntries:
		return fmt.Sprintf("is %d, must be at most %d for sliding_window_log, which remembers every hit", requests, MaxLogEntries)
	case a == algorithms.TokenBucketInteger && period > 0 && int64(requests) > int64(period):
		return fmt.Sprintf("is %d, must be at most %d for token_bucket_integer, which refills at most a token per nanosecond",
			requests, int64(period))
	}
	return ""
}

// readCountRejected decodes it: as the limit, else the document, else the algorithm says.
func (t *tree) readCountRejected(fs fields, l *Limit) {
	_, holds := fs.get("hold")
	l.CountRejected = l.Algorithm == algorithms.FixedWindow && !t.options.DropRejected && !holds
	if t.defaults.countRejected != nil && l.Algorithm != algorithms.Concurrency {
		l.CountRejected = *t.defaults.countRejected
	}
	if at, ok := fs.get("count_rejected"); ok {
		l.CountRejected = t.countRejected(at)
	}
}

// countRejected decodes it. Null is a mistake: it would not mean the default.
func (t *tree) countRejected(v value) bool {
	if isNull(v) {
		t.fail(v, "is empty, must be true or false")
		return false
	}
	return t.boolean(v)
}

func (t *tree) algorithm(v value) algorithms.Algorithm {
	name, ok := t.text(v)
	a, err := algorithms.ParseAlgorithm(name)
	if ok && err != nil {
		t.fail(v, "%s is not an algorithm, must be one of %s%s", quote(name), algorithms.Names(), algorithms.Hint(name))
	}
	return a
}

func (t *tree) readReplaces(v value, own string) []string {
	var names []string
	items := t.items(v, "a list of maps with a name each")
	if n := len(items); n > MaxLimits {
		t.fail(v, "has %d names, must have at most %d", n, MaxLimits)
		items = items[:MaxLimits]
	}
	for _, item := range items {
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

func (t *tree) readRate(v value, fs fields, l *limit) {
	if at, ok := fs.get("max_in_flight"); ok {
		t.fail(at, "is for concurrency only, must be left out for %s", l.Algorithm)
	}
	t.readPeriod(v, fs, &l.Limit)
	if at, ok := fs.get("burst"); ok {
		t.readBurst(at, &l.Limit)
	}
}

// isConcurrency reports a limit of concurrency, also one with a mistake in its algorithm.
func (t *tree) isConcurrency(fs fields, l *limit) bool {
	return l.Algorithm == algorithms.Concurrency || l.Algorithm == 0 && !l.unlimited && fs.has("max_in_flight")
}

func (t *tree) readSlots(v value, fs fields, f form, l *limit) {
	if f == defaultForm {
		at, ok := fs.get("algorithm")
		if !ok {
			at = v
		}
		t.fail(at, "is concurrency, which needs a hold: the default limit cannot have one, must have another algorithm")
		return
	}
	for _, key := range []string{"requests_per_unit", "unit", "unit_multiplier", "period", "burst", "warn_at", "align", "budget", "prices"} {
		if at, ok := fs.get(key); ok {
			t.fail(at, "has no meaning for concurrency, must be left out: max_in_flight is the whole limit")
		}
	}
	at, ok := fs.get("max_in_flight")
	if !ok {
		t.fail(v.under("max_in_flight"), "is missing, must be the number of hits that may be held at the same time")
		return
	}
	l.Requests, _ = t.count(at, 0)
}

func (t *tree) readPeriod(v value, fs fields, l *Limit) {
	unit, hasUnit := fs.get("unit")
	period, hasPeriod := fs.get("period")
	multiplier, hasMultiplier := fs.get("unit_multiplier")
	switch {
	case hasUnit && hasPeriod:
		t.fail(period, "stands beside unit: must be one of the two")
		return
	case hasPeriod:
		if hasMultiplier {
			t.fail(multiplier, "stands beside period: it multiplies a unit")
		}
		t.readDuration(period, l)
		return
	case !hasUnit:
		if at, _ := fs.get("unlimited"); fs.has("unlimited") {
			if _, ok := truth(at.node); !ok {
				return // the mistake is recorded already
			}
		}
		t.fail(v, "has neither unit (second, minute, hour, day, week, month, year) nor period (such as 10s), must have one of the two")
		return
	}
	name, ok := t.text(unit)
	if !ok {
		return
	}
	if l.Unit, ok = ParseUnit(name); !ok {
		t.fail(unit, "%s is not a unit, must be second, minute, hour, day, week, month or year%s", quote(name), unitHint(name))
	}
	l.Multiplier = 1
	if hasMultiplier {
		m, known := t.count(multiplier, 1)
		if ok = ok && known; known {
			l.Multiplier = m
		}
	}
	if !ok {
		return
	}
	if longest := uint32(algorithms.MaxPeriod / l.Unit.Duration()); l.Multiplier > longest {
		t.fail(multiplier, "is %d, must be at most %d for the unit %s: a period is at most 10 years", l.Multiplier, longest, l.Unit)
		return
	}
	l.Period = time.Duration(l.Multiplier) * l.Unit.Duration()
}

func (t *tree) readDuration(v value, l *Limit) {
	if d := t.duration(v); d > 0 {
		l.Period = d
		l.Unit, l.Multiplier = unitOf(d)
	}
}

// duration decodes a duration that is a valid period, 0 after a mistake.
func (t *tree) duration(v value) time.Duration {
	text, ok := t.text(v)
	if !ok {
		return 0
	}
	d, err := timespan.Parse(text)
	switch {
	case err != nil:
		t.fail(v, "%s is not a duration, must be a number and its unit, such as 250ms, 10s, 1h30m, 7d or 2w, at most 87600h%s",
			quote(text), timespan.Hint(text))
	case d < algorithms.MinPeriod || d > algorithms.MaxPeriod:
		t.fail(v, "%s is out of range, must be from 1ms to 87600h (10 years)", quote(text))
	case t.options.Granularity > 0 && d%t.options.Granularity != 0:
		t.fail(v, "%s is too fine, must be a whole multiple of %v, the step in which the store counts time", quote(text), t.options.Granularity)
	default:
		return d
	}
	return 0
}

func (t *tree) readBurst(v value, l *Limit) {
	var burst uint32
	var ok bool
	if l.Money {
		var micro uint64
		micro, ok = t.amount(v, math.MaxUint32, "")
		burst = uint32(micro)
	} else {
		burst, ok = t.count(v, 1)
	}
	if !ok {
		return
	}
	switch {
	case l.Algorithm == 0: // reported already
	case l.Algorithm != algorithms.TokenBucket:
		t.fail(v, "is for token_bucket only: must be left out for %s, or stand beside algorithm: token_bucket", l.Algorithm)
	case l.Requests == 0:
		t.fail(v, "is %d, must be left out: requests_per_unit 0 denies every hit", burst)
	default:
		l.Burst = burst
	}
}

// OnStoreError decides about a limit's hits while the store that counts them cannot be reached.
type OnStoreError uint8

// The choices.
const (
	OnStoreErrorUnset OnStoreError = iota // the document does not say
	OnStoreErrorLocal                     // count in memory until the store can be reached again
	OnStoreErrorAllow                     // let all hits pass
	OnStoreErrorDeny                      // deny all hits
)

// String returns the name as in rule files; "unset" for OnStoreErrorUnset.
func (o OnStoreError) String() string {
	if names := [...]string{"unset", "local", "allow", "deny"}; int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("on_store_error(%d)", uint8(o))
}

// onStoreErrorOf decodes on_store_error of a descriptor, which must have limits.
func (t *tree) onStoreErrorOf(fs fields, all []limit) OnStoreError {
	o := choice(t, fs, "on_store_error", OnStoreErrorDeny, "local, allow or deny")
	at, ok := fs.get("on_store_error")
	_, many := fs.get("rate_limits")
	switch {
	case !ok:
	case !many && !fs.has("rate_limit"):
		t.fail(at, "is for the descriptor's own limits, and it has none: must stand beside rate_limit or rate_limits, or in defaults")
	case len(all) == 1 && all[0].unlimited:
		t.fail(at, "is for limits, and the descriptor is unlimited: must be left out")
	}
	return o
}

// choice decodes a choice from 1 to last; 0 without the key. must lists the names.
func choice[C interface {
	~uint8
	String() string
}](t *tree, fs fields, key string, last C, must string) C {
	at, given := fs.get(key)
	if !given {
		return 0
	}
	name, isText := t.text(at)
	for c := C(1); c <= last; c++ {
		if c.String() == name {
			return c
		}
	}
	if isText {
		t.fail(at, "%s is not known, must be %s", quote(name), must)
	}
	return 0
}

// Unit is a unit of time, numbered as envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit.
type Unit int32

// The units. A month has 30 days, a year 365.
const (
	UnitUnknown Unit = 0
	Second      Unit = 1
	Minute      Unit = 2
	Hour        Unit = 3
	Day         Unit = 4
	Month       Unit = 5
	Year        Unit = 6
	Week        Unit = 7
)

func unitNames() [8]string {
	return [...]string{"unknown", "second", "minute", "hour", "day", "month", "year", "week"}
}

// String returns the unit's name as in rule files, lower case; "unknown" for UnitUnknown.
func (u Unit) String() string {
	if names := unitNames(); u >= 0 && int(u) < len(names) {
		return names[u]
	}
	return fmt.Sprintf("unit(%d)", int32(u))
}

// Duration returns the length of the unit, 0 for UnitUnknown and for numbers that are no unit.
func (u Unit) Duration() time.Duration {
	const day = 24 * time.Hour
	lengths := [...]time.Duration{0, time.Second, time.Minute, time.Hour, day, 30 * day, 365 * day, 7 * day}
	if u >= 0 && int(u) < len(lengths) {
		return lengths[u]
	}
	return 0
}

// ParseUnit returns the unit of that name, in any case. "unknown" names no unit.
func ParseUnit(name string) (Unit, bool) {
	for u, n := range unitNames() {
		if u > 0 && strings.EqualFold(n, name) {
			return Unit(u), true
		}
	}
	return UnitUnknown, false
}

// unitOf returns the largest unit that divides a period, and the quotient; else UnitUnknown.
func unitOf(period time.Duration) (Unit, uint32) {
	for _, u := range []Unit{Year, Month, Week, Day, Hour, Minute, Second} {
		if d := u.Duration(); period > 0 && period%d == 0 {
			return u, uint32(period / d)
		}
	}
	return UnitUnknown, 0
}

// PeriodName names the period of the limit. A unit stands after the number of units if there are
// several ("minute", "7day"). A period without a unit is a duration ("1.5s"). Concurrency, which
// has no period, is "concurrency".
func (l *Limit) PeriodName() string {
	switch {
	case l.Algorithm == algorithms.Concurrency:
		return "concurrency"
	case l.Unit == UnitUnknown:
		return l.Period.String()
	case l.Multiplier > 1:
		return strconv.FormatUint(uint64(l.Multiplier), 10) + l.Unit.String()
	default:
		return l.Unit.String()
	}
}
