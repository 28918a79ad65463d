package algorithms

import (
	"fmt"
	"time"
)

// Escalation blocks a key that offends again and again, each time for longer. Rule files cannot
// name the algorithm, which stands beside a limit. See [Escalate] for its limit.
//
// Hits above 0 are an offense at the instant of the charge, and are the seconds of the block that
// the offense may begin. Such hits change nothing while the key is blocked, or if the period of
// the limit has an offense already. Hits of 0 ask, and refunds change nothing.
//
// A decision is a denial while the key is blocked, and RetryAfter is the wait until the end of the
// block. Else Remaining tells more, see [Offenses]. ResetAfter of such a decision is the wait until
// the key is forgotten, and 0 for a key without offenses.
//
// An offense counts at its whole second, rounded down. Together with the Offenses-1 ones of the
// last Within it begins a block. The offenses of a block do not count for the next one. Forget
// after the last offense, the next block is the first one again.
const Escalation Algorithm = 10

// Bounds of an [Escalate].
const (
	MaxOffenses = 5
	MaxWithin   = 6 * 24 * time.Hour
	MaxBlocks   = 15 // different lengths of blocks
)

// Escalate says when a key is blocked, as a limit of [Escalation]: see Limit.
type Escalate struct {
	Offenses uint32        // that begin a block, 1 to MaxOffenses
	Within   time.Duration // whole seconds, at least Period and at most MaxWithin
	Forget   time.Duration // whole seconds, at least Within and at most MaxPeriod

	Period  time.Duration // of the limit, in which further denials are no further offenses; whole milliseconds
	Windows bool          // the periods of the limit are windows since the epoch; else a period begins with its offense
}

// The hits per period of a limit are packed: the offenses, Windows in one bit, Period in
// milliseconds, and Within in seconds.
const (
	offenseBits = 3
	periodBits  = 29
	levelBits   = 4  // of State.a: the blocks so far, at most MaxBlocks. Then offenseBits: the offenses that count, with the last one
	gapBits     = 19 // of State.b: seconds, less than Within
)

// Limit returns the limit of Escalation. All have one Period, so that a key stays blocked when its
// rule changes. Burst has Forget in seconds.
func (e Escalate) Limit() Limit {
	packed := uint64(e.Within/time.Second)<<periodBits | uint64(e.Period/time.Millisecond)
	packed <<= 1
	if e.Windows {
		packed |= 1
	}
	l := Limit{Algorithm: Escalation, Period: MaxPeriod, Extra: Extra{Burst: uint32(e.Forget / time.Second)}}
	l.SetPerPeriod(packed<<offenseBits | uint64(e.Offenses))
	return l
}

// escalateOf is the inverse of Escalate.Limit.
func escalateOf(l Limit) Escalate {
	packed := l.PerPeriod()
	above := packed >> (offenseBits + 1)
	return Escalate{
		Offenses: uint32(packed & (1<<offenseBits - 1)), Windows: packed>>offenseBits&1 == 1,
		Period: time.Duration(above&(1<<periodBits-1)) * time.Millisecond, Within: time.Duration(above>>periodBits) * time.Second,
		Forget: time.Duration(l.Burst) * time.Second,
	}
}

// validate returns the mistakes of a limit of Escalation.
func (e Escalate) validate() (errs []error) {
	if e.Offenses < 1 || e.Offenses > MaxOffenses {
		errs = append(errs, fmt.Errorf("offenses: %d: must be 1 to %d", e.Offenses, MaxOffenses))
	}
	if e.Period < MinPeriod || e.Period > e.Within || e.Within > MaxWithin || e.Within > e.Forget || e.Forget > MaxPeriod {
		errs = append(errs, fmt.Errorf("within: %v: must be from the period (%v) to %v, and at most forget (%v), of at most 10 years",
			e.Within, e.Period, MaxWithin, e.Forget))
	}
	return errs
}

// Offenses is the past of a key that is not blocked, see [OffensesOf].
type Offenses struct {
	Blocks int  // that the key has had, up to MaxBlocks: the index of the length of the next one
	Told   bool // the period has an offense already
}

// OffensesOf reads Remaining of a decision that is no denial.
func OffensesOf(d Decision) Offenses {
	return Offenses{Blocks: int(d.Remaining >> 1), Told: d.Remaining&1 == 1}
}

// escalation keeps in a: the number of blocks, the number of offenses that count, and the seconds
// of the block that began at last. b has the seconds from each earlier offense to the last one, the
// newest first.
type escalation direct

func (escalation) name() string { return "escalation" }

func (k escalation) take(l Limit, s State, now Instant, hits int64, _ Excess) (State, Decision) {
	if !s.Unused() {
		if k.idleAt(l, s) <= now {
			s = State{}
		} else {
			now = max(now, s.last)
		}
	}
	e := escalateOf(l)
	told := e.told(s, now)
	if hits > 0 && !told && BlockEnd(s) <= now {
		s, told = e.offend(s, now, uint64(min(hits, MaxHits))), true
	}
	if s.Unused() {
		return s, Decision{Allowed: true}
	}
	if end := BlockEnd(s); end > now {
		wait := end.Sub(now)
		return s, Decision{RetryAfter: wait, ResetAfter: wait}
	}
	d := Decision{Allowed: true, Remaining: blocksOf(s) << 1, ResetAfter: k.idleAt(l, s).Sub(now)}
	if told {
		d.Remaining |= 1
	}
	return s, d
}

func blocksOf(s State) uint64 { return s.a & (1<<levelBits - 1) }

func countOf(s State) int { return int(s.a >> levelBits & (1<<offenseBits - 1)) }

// BlockEnd returns the end of the block that began with the last offense of a key of [Escalation].
// Without a block it is the instant of that offense.
func BlockEnd(s State) Instant {
	return s.last.Add(time.Duration(s.a>>(levelBits+offenseBits)) * time.Second)
}

// told reports whether the period of now has an offense.
func (e Escalate) told(s State, now Instant) bool {
	switch {
	case s.Unused():
		return false
	case e.Windows:
		return floorDiv(s.last, e.Period) == floorDiv(now, e.Period)
	default:
		return now.Sub(s.last) < e.Period
	}
}

// offend returns the state after an offense, which may begin a block of so many seconds.
func (e Escalate) offend(s State, now Instant, seconds uint64) State {
	const gap = 1<<gapBits - 1
	since, counted, gaps := uint64(floorDiv(now, time.Second)-floorDiv(s.last, time.Second)), 0, uint64(0)
	for age := since; counted < countOf(s) && age < uint64(e.Within/time.Second); counted++ {
		gaps |= age << (counted * gapBits)
		age = since + s.b>>(counted*gapBits)&gap
	}
	blocks := blocksOf(s)
	if counted+1 >= int(e.Offenses) {
		return State{last: now, a: min(blocks+1, MaxBlocks) | seconds<<(levelBits+offenseBits)}
	}
	return State{last: now, a: blocks | uint64(counted+1)<<levelBits, b: gaps}
}

func floorDiv(i Instant, by time.Duration) Instant {
	q := i / Instant(by)
	if i%Instant(by) < 0 {
		q--
	}
	return q
}

func (escalation) idleAt(l Limit, s State) Instant {
	e := escalateOf(l)
	if blocksOf(s) == 0 {
		return s.last.Add(e.Within)
	}
	return max(s.last.Add(e.Forget), BlockEnd(s))
}

func (escalation) change(_, _ Limit, s State, _ Instant) State { return s }

func (escalation) realign(_ Limit, s State, _ Instant, step time.Duration) State {
	return State{last: s.last.Moved(step), a: s.a, b: s.b}
}

func (escalation) clamp(_ Limit, s State, now Instant) State {
	seconds := min(s.a>>(levelBits+offenseBits), MaxHits)
	blocks, count := blocksOf(s), uint64(min(countOf(s), MaxOffenses-1))
	if blocks == 0 {
		count, seconds = max(count, 1), 0
	}
	return State{last: min(s.last, now), a: blocks | count<<levelBits | seconds<<(levelBits+offenseBits), b: s.b & (1<<(3*gapBits) - 1)}
}

func (escalation) content(Limit, State, Instant) wide { return wide{} }

// A record holds the instant of the last offense, State.a, two gaps of State.b, the third one below
// Within in seconds, and Forget in seconds.
func (escalation) layout() string { return "75554" }

func (escalation) record(l Limit, s State) numbers {
	within := uint64(escalateOf(l).Within / time.Second)
	return numbers{s.last.ticks(), s.a, s.b & (1<<(2*gapBits) - 1), s.b>>(2*gapBits) | within<<gapBits, uint64(l.Burst)}
}

func (escalation) restore(l Limit, n numbers) (State, Limit) {
	e := escalateOf(l)
	e.Within, e.Forget = time.Duration(n[3]>>gapBits)*time.Second, time.Duration(n[4])*time.Second
	return State{last: instantOf(n[0]), a: n[1], b: n[2] | n[3]&(1<<gapBits-1)<<(2*gapBits)}, e.Limit()
}
