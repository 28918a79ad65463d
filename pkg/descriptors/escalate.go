package descriptors

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/timespan"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// Escalate says when a key that offends again and again is blocked, and for how long. An offense is
// the first denial of a key in a period of the limit, by the limit's own count.
type Escalate struct {
	Offenses       uint32          // that begin a block, 1 to algorithms.MaxOffenses
	Within, Forget time.Duration   // as in algorithms.Escalate
	Block          []time.Duration // the lengths of the first block, of the second one, and so on; the last one repeats. Whole seconds

	suffix string // ends the keys of blocks
}

// Blocks returns the limit of [algorithms.Escalation] that stands beside the limit. The limit must
// have Escalate.
func (l *Limit) Blocks() algorithms.Limit {
	return algorithms.Escalate{
		Offenses: l.Escalate.Offenses, Within: l.Escalate.Within, Forget: l.Escalate.Forget, Period: l.Period, Windows: l.Algorithm.HasWindows(),
	}.Limit()
}

// AppendBlockKey appends to dst the key of blocks beside a key of the limit. The key names the
// domain and the entries, but not the algorithm and the period: blocks outlive their change. The
// blocks of a rule's second limit with escalate have another key. The limit must have Escalate.
func (l *Limit) AppendBlockKey(dst, key []byte) []byte {
	return append(append(dst, l.Base(key)...), l.Escalate.suffix...)
}

// setBlockSuffixes gives the limits of a rule that escalate the ends of the keys of their blocks.
func setBlockSuffixes(rule *Rule) {
	n := 0
	for i := range rule.Limits {
		e := rule.Limits[i].Escalate
		if e == nil {
			continue
		}
		if n++; n == 1 {
			e.suffix = "#block"
		} else {
			e.suffix = "#block." + strconv.Itoa(n)
		}
	}
}

// Length returns the length of the next block of a key that has had so many.
func (e *Escalate) Length(blocks int) time.Duration { return e.Block[min(blocks, len(e.Block)-1)] }

// String returns the words of rule files without the braces: "after: 3, within: 10m, block: [1m,
// 1h], forget: 7d".
func (e *Escalate) String() string {
	lengths := make([]string, len(e.Block))
	for i, d := range e.Block {
		lengths[i] = timespan.Format(d)
	}
	return "after: " + strconv.FormatUint(uint64(e.Offenses), 10) + ", within: " + timespan.Format(e.Within) +
		", block: [" + strings.Join(lengths, ", ") + "], forget: " + timespan.Format(e.Forget)
}

// Escalates reports whether a limit of the rule blocks keys; false for nil.
func (r *Rule) Escalates() bool {
	return r != nil && slices.ContainsFunc(r.Limits, func(l Limit) bool { return l.Escalate != nil })
}

func (e *Escalate) appendMeaning(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, hasEscalate), uint64(len(e.Block)))
	for _, d := range append([]time.Duration{time.Duration(e.Offenses), e.Within, e.Forget}, e.Block...) {
		dst = binary.AppendUvarint(dst, uint64(d))
	}
	return dst
}

// maxBlock bounds a block, which a charge says in seconds.
const maxBlock = min(algorithms.MaxPeriod, algorithms.MaxHits*time.Second)

// readEscalate decodes escalate, once the limit has its algorithm and its period.
func (t *tree) readEscalate(fs fields, l *limit) {
	v, given := fs.get("escalate")
	if !given {
		return
	}
	l.escalateAt = v
	before := len(t.errs)
	t.checkEscalated(v, fs, l)
	in, ok := t.fields(v, escalateForm)
	if !ok {
		return
	}
	e := new(Escalate)
	if at, ok := t.needed(v, in, "after", "how many offenses begin a block, 1 to 5"); ok {
		e.Offenses, _ = t.countUpTo(at, 1, algorithms.MaxOffenses)
	}
	if at, ok := t.needed(v, in, "within", "the time in which the offenses must come, such as 10m"); ok {
		e.Within = t.seconds(at, algorithms.MaxWithin, "6d")
		t.checkWithin(at, e, l)
	}
	if at, ok := t.needed(v, in, "block", "the lengths of the blocks, such as [1m, 10m, 1h, 24h]"); ok {
		e.Block = t.lengths(at)
	}
	if at, ok := t.needed(v, in, "forget", "the time after the last offense in which the next block is the first one again, such as 7d"); ok {
		e.Forget = t.seconds(at, algorithms.MaxPeriod, "87600h (10 years)")
		if least := max(e.Within, slices.Max(append(e.Block, 0))); e.Forget > 0 && e.Forget < least {
			t.fail(at, "is shorter than within or than the longest block, must be at least %s", timespan.Format(least))
		}
	}
	t.checkPeriods(v, e, l)
	if len(t.errs) == before {
		l.Escalate, l.CountRejected, l.Sharing = e, false, SharingExact
	}
}

// checkWithin reports a time in which so many offenses cannot come. In windows, the first offense
// can be at the end of its window, and the last one at the begin.
func (t *tree) checkWithin(v value, e *Escalate, l *limit) {
	between := time.Duration(max(e.Offenses, 1)-1) * l.Period
	if l.Algorithm.HasWindows() {
		between = max(between-l.Period, 0)
	}
	switch {
	case e.Within == 0 || l.Period > algorithms.MaxWithin:
	case e.Within < l.Period:
		t.fail(v, "is shorter than the period of the limit, which has one offense at most: must be at least %s", timespan.Format(l.Period))
	case between >= e.Within:
		t.fail(v, "is too short for %d offenses, as a period of %s has one at most: must be more than %s", e.Offenses,
			timespan.Format(l.Period), timespan.Format(between))
	}
}

// checkPeriods reports lines of the limit's table whose period is longer than within.
func (t *tree) checkPeriods(at value, e *Escalate, l *limit) {
	if l.tabled == nil || e.Within == 0 {
		return
	}
	before := len(t.errs)
	for i := range l.tabled.rows.all {
		x := &l.tabled.rows.all[i]
		if Unit(x.unit).Duration() > e.Within && len(t.errs)-before < maxMistakes/10 {
			t.failRow(at, l, x, "unit", "is %s, must be at most the within of escalate: %s", Unit(x.unit), timespan.Format(e.Within))
		}
	}
}

// needed returns a value that must be there.
func (t *tree) needed(v value, in fields, key, meaning string) (at value, ok bool) {
	if at, ok = in.get(key); !ok {
		t.fail(v.under(key), "is missing, must be %s", meaning)
	}
	return at, ok
}

// checkEscalated reports words that cannot stand beside escalate.
func (t *tree) checkEscalated(v value, fs fields, l *limit) {
	switch {
	case l.Algorithm == algorithms.Concurrency:
		t.fail(v, "has no meaning for concurrency, must be left out: a denial there says that others are slow, and has no period")
	case l.Algorithm != 0 && l.PerPeriod() == 0 && l.Period > 0 && !fs.has("table") && !fs.has("schedule"):
		t.fail(v, "stands beside a limit of 0, which denies every hit: must be left out")
	case l.Period > algorithms.MaxWithin:
		t.fail(v, "stands beside a period of %s, must be left out: offenses are counted within 6d at most", timespan.Format(l.Period))
	case l.Period%time.Millisecond != 0:
		t.fail(v, "needs a period of whole milliseconds, but the period is %v", l.Period)
	}
	if at, ok := fs.get("align"); ok {
		t.fail(at, "stands beside escalate, which counts offenses in periods of one length: must be left out")
	}
	if at, ok := fs.get("count_rejected"); ok && l.CountRejected {
		t.fail(at, "stands beside escalate: must be false, as the hits of a blocked key are not counted")
	}
	if at, ok := fs.get("sharing"); ok && l.Sharing == SharingLeased {
		t.fail(at, "is leased beside escalate, must be exact: the store has to see each denial")
	}
}

// seconds decodes a duration of whole seconds, 0 after a mistake.
func (t *tree) seconds(v value, most time.Duration, written string) time.Duration {
	switch d := t.duration(v); {
	case d == 0:
	case d%time.Second != 0 || d > most:
		t.fail(v, "is %s, must be whole seconds, from 1s to %s", quote(v.node.Value), written)
	default:
		return d
	}
	return 0
}

// lengths decodes the lengths of blocks.
func (t *tree) lengths(v value) (all []time.Duration) {
	items := t.items(v, "a list of durations")
	switch n := len(items); {
	case t.stopped || v.node.Kind != yaml.SequenceNode && !isNull(v):
		return nil
	case n == 0:
		t.fail(v, "is empty, must have at least one length, such as [1m, 10m, 1h, 24h]")
	case n > algorithms.MaxBlocks:
		t.fail(v, "has %d lengths, must have at most %d", n, algorithms.MaxBlocks)
		return nil
	}
	for _, item := range items {
		d := t.seconds(item, maxBlock, "87600h (10 years)")
		if len(all) > 0 && d > 0 && d < all[len(all)-1] {
			t.fail(item, "is shorter than the length before: blocks must grow, or stay as long")
		}
		all = append(all, d)
	}
	return all
}

// checkOffenders warns of modes of a rule in which no denial is an offense, and of keys that a
// client can choose.
func (t *tree) checkOffenders(rule *Rule, l *limit) {
	at := l.escalateAt
	switch {
	case l.Escalate == nil:
		return
	case rule.Shadow:
		t.warn(at, at.line, "has no effect in a rule with shadow_mode, where no denial is an offense")
	case rule.Quota:
		t.warn(at, at.line, "has no effect in a rule with quota_mode, where a spent quota is no offense")
	}
	if i := slices.IndexFunc(rule.Levels, func(l Level) bool { return l.Key == "remote_address" || l.Key == maskedAddress }); i >= 0 {
		t.warn(at, at.line, "blocks addresses of %s. Without trusted hops a client chooses its address by x-forwarded-for: it escapes, "+
			"and blocks others. Envoy needs use_remote_address: true, and the number of proxies before it in xff_num_trusted_hops",
			quote(rule.Levels[i].Key))
	}
}
