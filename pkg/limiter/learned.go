package limiter

import (
	"sync/atomic"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// A limit can learn how much its begins hold. Each of its keys has a further key for each model,
// which learns a quantile of the true costs, see [algorithms.Learned]. An end teaches it in its
// own transaction. This process remembers the number that a key told last, so that a begin knows
// its hits before it asks the store. Where this process knows no number, a store in this process
// says it at once. With a shared store such a begin holds the estimate that was sent, and brings
// the number for the next one.

// learnedSuffix and the model make the key that learns from the key of its limit.
const learnedSuffix = "/learned/"

// lesson is a charge to the key that learns for the charge of a limit.
type lesson struct {
	key      []byte
	hash     uint64
	quantile uint32 // in thousandths
	hits     int64  // to teach; 0 asks for the number
	charge   int    // index of the limit's charge
}

// lessons is the lessons of a descriptor, and memory to ask for a number.
type lessons struct {
	all  []lesson
	ask  [1]store.Charge
	told [1]algorithms.Decision
}

// learns makes the hits of a begin its estimate, and adds the lesson of the charge. The
// charge is the last one, has a holder, and belongs to a limit that learns.
func (l *Limiter) learns(c *charging, limit *descriptors.Limit, charge *store.Charge) {
	v := c.verdict
	s, d := &v.Statuses[c.at], &c.request.Descriptors[c.at]
	lesson := lesson{quantile: limit.Estimate.Quantile, charge: len(v.charges) - 1}
	begins, pair := charge.Hold.Phase.Begins(), charge.Hold.Phase == algorithms.HoldPair
	switch {
	case begins && limit.Prices() && charge.Hits == 0 && s.Hits > 0 && !v.usage.Unused(): // a free model
		return
	case !begins && charge.Hits <= 0: // a request that failed, or was denied
		return
	}
	from := len(v.keys)
	v.keys = append(append(append(v.keys, charge.Key...), learnedSuffix...), s.Rule.Model(d.Entries, v.usage)...)
	lesson.key = v.keys[from:]
	lesson.hash = store.HashOf(lesson.key)
	if !begins {
		lesson.hits = charge.Hits
		v.lessons.all = append(v.lessons.all, lesson)
		return
	}
	told := l.estimates.Load().of(lesson.hash)
	if told == 0 {
		told = l.askLesson(v, &lesson)
	}
	ceiling := int64(limit.Estimate.Ceiling)
	// One begin in sixteen asks, as another process may teach the key. The bytes of a holder are as
	// good as random.
	if told == 0 || c.holder.id[0]%16 == 0 || v.explains || pair {
		v.lessons.all = append(v.lessons.all, lesson)
	}
	estimate := charge.Hits
	switch {
	case told > 0:
		estimate = min(int64(told), ceiling)
	case estimate == 0: // nobody has estimated
		estimate = ceiling
	default:
		estimate = min(estimate, ceiling)
	}
	if pair { // the hits are the cost, if the pair ends
		charge.Hold.Estimate = uint32(estimate)
	} else {
		charge.Hits = estimate
	}
}

// askLesson returns the number that a key has learned, 0 for none yet. A store that would have to
// wait says 0.
func (l *Limiter) askLesson(v *Verdict, lesson *lesson) uint32 {
	v.lessons.ask[0] = lesson.asks(0)
	_, decided := l.store.TakeNow(v.lessons.ask[:], v.lessons.told[:])
	v.lessons.ask[0] = store.Charge{}
	if !decided {
		return 0
	}
	return l.estimates.Load().learn(lesson.hash, &v.lessons.told[0])
}

// asks returns the charge of a lesson.
func (s *lesson) asks(rule int) store.Charge {
	return store.Charge{
		Key: s.key, Limit: algorithms.Learn(s.quantile), Hits: s.hits, Rule: rule, Mode: store.Shadow, CountRejected: true,
		OnError: store.OnErrorAllow, Exact: true, Hash: s.hash,
	}
}

// teach adds the charges of the lessons of the descriptor, behind all others of its rule. The mode
// keeps a store without room from denying the request.
func (v *Verdict) teach(at int) {
	for i := range v.lessons.all {
		lesson := &v.lessons.all[i]
		charge := lesson.asks(at)
		v.limits = append(v.limits, descriptors.Limit{Limit: charge.Limit})
		v.charges = append(v.charges, charge)
		v.terms = append(v.terms, term{limit: &v.limits[len(v.limits)-1], hold: -1 - int32(lesson.charge)})
	}
	v.lessons.all = v.lessons.all[:0]
}

// teachPairs adds the lessons of pairs that have ended to the next transaction. The first
// transaction has only asked.
func (v *Verdict) teachPairs() {
	for i := range v.charges {
		if !v.terms[i].learns() || !v.Statuses[v.charges[i].Rule].Rule.Pairs() {
			continue
		}
		if of := &v.charges[-1-v.terms[i].hold]; of.Hold.Phase == algorithms.HoldEnd && of.Hits > 0 {
			lesson := v.charges[i]
			lesson.Hits, lesson.Left = of.Hits, nil
			v.choice.charges = append(v.choice.charges, lesson)
		}
	}
}

// learned keeps the numbers that the keys of a decided request have told, and reports whether there
// are any.
func (l *Limiter) learned(v *Verdict) (any bool) {
	for i := range v.charges {
		if v.terms[i].learns() {
			any = l.estimates.Load().learn(v.charges[i].Hash, &v.decisions[i]) > 0 || any
		}
	}
	return any
}

const (
	estimateSets = 1 << 14
	estimateWays = 4
)

// estimates has the numbers that keys told last, for up to 65536 keys. A key beyond takes the place
// of another one. Each place has 32 bits of the hash of its key, and the number in the other 32
// bits; 0 is an empty place. Safe for concurrent use, without locks: of two writers one may be
// lost. The nil table is empty, and keeps nothing.
type estimates [estimateSets][estimateWays]atomic.Uint64

func (e *estimates) set(hash uint64) *[estimateWays]atomic.Uint64 { return &e[hash%estimateSets] }

// of returns the number of a key, 0 without one.
func (e *estimates) of(hash uint64) uint32 {
	if e == nil {
		return 0
	}
	for i := range e.set(hash) {
		if word := e.set(hash)[i].Load(); word>>32 == hash>>32 {
			return uint32(word)
		}
	}
	return 0
}

// learn keeps the number in a decision about a key, and returns it. A decision without the shared
// store says nothing: it has no ResetAfter.
func (e *estimates) learn(hash uint64, d *algorithms.Decision) uint32 {
	if e == nil || d.ResetAfter == 0 {
		return 0
	}
	set := e.set(hash)
	word, place := hash>>32<<32|d.Remaining, -1
	if d.Remaining == 0 {
		word = 0
	}
	for i := range set {
		switch was := set[i].Load(); {
		case was>>32 == hash>>32 && was != 0:
			if was != word {
				set[i].Store(word)
			}
			return uint32(d.Remaining)
		case was == 0:
			place = i
		}
	}
	if place < 0 {
		place = int(hash >> 20 % estimateWays)
	}
	if word != 0 {
		set[place].Store(word)
	}
	return uint32(d.Remaining)
}
