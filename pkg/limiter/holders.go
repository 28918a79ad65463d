package limiter

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

type holder struct {
	phase algorithms.HoldPhase // 0: the rule has no holders
	id    store.Holder
	hits  int64 // of the charges
}

// skips reports whether the holder's phase does not charge a limit.
func (h holder) skips(limit *descriptors.Limit) bool {
	return h.phase == algorithms.HoldEnd && limit.AtMost == 0
}

// holder writes the holder of a descriptor to h, which must be zero. Where a holder gives the hits
// of the status another meaning, holder changes them.
//
// Negative hits at a begin count as 0. A begin without a name holds namelessly until the hold runs
// out. An end without a name does nothing, as the end of a holder that nobody has begun, with
// negative hits.
func (v *Verdict) holder(s *DescriptorStatus, d *Descriptor, h *holder) {
	phase, name := s.Rule.Holder(d.Entries)
	switch {
	case phase == 0:
		return
	case phase.Begins():
		if s.Hits = max(s.Hits, 0); name == "" { // nobody can end the holder
			phase = algorithms.HoldBegin
		}
	case name == "":
		s.Hits = 0
		h.phase, h.hits = phase, -1
		return
	}
	h.phase, h.hits = phase, s.Hits
	if name == "" {
		_, _ = rand.Read(h.id[:]) // which never fails
		return
	}
	v.name = append(v.name[:0], name...)
	h.id = store.HolderOf(v.name)
}

// pairHits gives a charge of a pair its hits at either end. The hits of a pair are tokens for the
// limits beside, and a request in flight has one slot.
func pairHits(c *store.Charge) {
	if c.Limit.Algorithm == algorithms.Concurrency {
		c.Hits = 1
	}
	c.Hold.Estimate = uint32(c.Hits)
}

// charged returns how much of the hits the descriptor of a holder has charged: the difference to
// the held hits, at an end. Slots that become free are no hits.
func (s *DescriptorStatus) charged(hits int64) int64 {
	switch {
	case s.Hold.Phase.Begins() && s.Hold.Was.Status == algorithms.HoldHeld:
		return 0
	case s.Hold.Phase.Begins():
		return hits
	case s.Limit.Algorithm == algorithms.Concurrency:
		return 0
	}
	return s.Hold.Was.Effect(s.Hold.Phase, s.Limit.Limit, hits).Hits
}

type holdCounts struct {
	begun, repeated, ended, released, unseen, cut atomic.Uint64
	estimate, cost                                atomic.Uint64 // hits
	held                                          held
}

// HoldTally is the number of holders of a rule since the start, by their first limit with holders.
type HoldTally struct {
	Begun    uint64 // begins that were admitted
	Repeated uint64 // begins of a holder that held already
	Ended    uint64 // ends of a holder that held
	Released uint64 // holders that held until an operator released them
	Cut      uint64 // admitted begins with an estimate above the capacity, which was cut to the capacity
	Unseen   uint64 // ends of a holder that was not known. Concurrency does not remember denied holders: their ends are counted here

	// Of the ended holders, by their first rate limit: the hits at the begins, and the hits at the
	// ends.
	Estimate, Cost uint64

	// Of the begun holders: the number that holds now, and the number that has run out. A holder that
	// runs out counts as held a little longer: up to a tenth of its time, and until the second call of
	// Holds. Held falls at an end whose begin another process counted, also below 0. Both are 0 if the
	// store does not tell the instants.
	Held   int64
	RanOut uint64
}

// add counts a holder, and sets Held. v is the verdict of the store.
func (c *holdCounts) add(v *Verdict, s *DescriptorStatus) {
	s.Held = s.Hold.Was.Hits
	first := s.charge
	for v.charges[first].Hold != s.Hold {
		first++
	}
	switch was := s.Hold.Was.Status; {
	case s.Hold.Phase.Begins() && was == algorithms.HoldHeld:
		c.repeated.Add(1)
	case s.Hold.Phase.Begins():
		if (v.charges[first].Hits > 0 || s.Hold.Phase == algorithms.HoldPair) && !v.OverLimit && v.decisions[first].Allowed {
			s.Held = uint32(v.charges[first].Hits)
			c.begun.Add(1)
			if s.Hold.Now != 0 {
				c.held.begin(s.Hold.Now, s.Hold.AtMost)
			}
		}
	case was == algorithms.HoldUnknown && v.charges[first].Hits >= 0:
		c.unseen.Add(1)
	case was == algorithms.HoldHeld:
		c.ended.Add(1)
		c.held.end(s.Hold.Was)
	}
	if s.Hold.Phase != algorithms.HoldEnd {
		return
	}
	for i := first; i < s.charge+s.count; i++ {
		charge := &v.charges[i]
		if charge.Hold == nil || charge.Limit.Algorithm == algorithms.Concurrency {
			continue
		}
		if charge.Hold.Was.Status == algorithms.HoldHeld {
			c.estimate.Add(uint64(charge.Hold.Was.Hits))
			c.cost.Add(uint64(max(charge.Hits, 0)))
		}
		return
	}
}

// Holds returns the counts of the holders of the rule. now is the instant of the call.
func (c *Counts) Holds(now time.Time) HoldTally {
	more := c.more.Load()
	if more == nil {
		return HoldTally{}
	}
	h := &more.holds
	held, ranOut := h.held.read(now)
	return HoldTally{
		Begun: h.begun.Load(), Repeated: h.repeated.Load(), Ended: h.ended.Load(), Unseen: h.unseen.Load(),
		Released: h.released.Load(), Cut: h.cut.Load(), Estimate: h.estimate.Load(), Cost: h.cost.Load(),
		Held: held, RanOut: ranOut,
	}
}

// held counts the holders of a rule that hold now, and the holders that have run out, in bounded
// memory. A span of time has the number of holders that will run out in it: a begin adds one, and
// an end takes one away. The rest of a span that has passed has run out. So a holder that runs out
// counts as held for up to a tenth of at_most longer, and until the next but one read. All methods
// are safe for concurrent use.
//
// All instants are of the store's clock. A holder may have begun at another process, or before the
// first event here. The end then takes one away from nothing. The sum over all processes is right.
type held struct {
	rings  atomic.Pointer[[]*ring] // by at_most, which a reload may change; never changed in place
	most   atomic.Int64            // the largest number that has run out so far
	adding sync.Mutex              // guards changes of rings
}

const (
	spansOfHold = 32              // in at_most
	spansOfRing = spansOfHold + 8 // the last ones that passed wait for an end that is being counted
	maxRings    = 8
)

// ring is the spans of the holders with one at_most.
type ring struct {
	atMost time.Duration
	width  algorithms.Instant // of a span, at least 1 ns
	since  algorithms.Instant // the first event; ends of earlier begins are left out

	spans  [spansOfRing]atomic.Int64 // by number, modulo the length
	passed atomic.Int64              // the number of the first span that has not passed
	live   atomic.Int64              // sum of the spans
	ranOut atomic.Int64              // sum of the spans that have passed

	mu     sync.Mutex         // guards all below, and the change of passed
	seen   algorithms.Instant // of the last begin that found a span to have passed
	read   algorithms.Instant // the last seen that a read has found
	readAt time.Time          // of that read, by the reader's clock
}

func (h *held) begin(now algorithms.Instant, atMost time.Duration) {
	atMost = ofMicroseconds(atMost)
	r := h.ring(now, atMost)
	r.advance(now)
	r.add(now.Add(atMost), 1)
}

func (h *held) end(was algorithms.Hold) {
	if was.Until <= was.At {
		return // a store that cannot tell
	}
	r := h.ring(was.At, ofMicroseconds(was.Until.Sub(was.At)))
	if was.At >= r.since {
		r.add(was.Until, -1)
	}
}

// ofMicroseconds rounds a time up as stores do that count in microseconds.
func ofMicroseconds(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

func (h *held) ring(now algorithms.Instant, atMost time.Duration) *ring {
	if r := h.find(atMost); r != nil {
		return r
	}
	h.adding.Lock()
	defer h.adding.Unlock()
	if r := h.find(atMost); r != nil {
		return r
	}
	r := &ring{atMost: atMost, width: algorithms.Instant(max(atMost/spansOfHold, 1)), since: now}
	r.passed.Store(max(int64(now/r.width)-1, 0))
	r.seen = now
	var all []*ring
	if known := h.rings.Load(); known != nil {
		all = *known
	}
	if len(all) == maxRings {
		all = all[1:]
	}
	all = append(slices.Clone(all), r)
	h.rings.Store(&all)
	return r
}

func (h *held) find(atMost time.Duration) *ring {
	if all := h.rings.Load(); all != nil {
		for _, r := range *all {
			if r.atMost == atMost {
				return r
			}
		}
	}
	return nil
}

// advance counts the spans that have passed at an instant. The last one of these waits.
func (r *ring) advance(now algorithms.Instant) {
	until := int64(now/r.width) - 1
	if until <= r.passed.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = max(r.seen, now)
	r.passLocked(until)
}

// passLocked counts the spans before a number, which have passed. mu must be held.
func (r *ring) passLocked(until int64) {
	from := r.passed.Load()
	if until <= from {
		return
	}
	r.passed.Store(until)
	for n := from; n < min(until, from+spansOfRing); n++ {
		rest := r.spans[n%spansOfRing].Swap(0)
		r.live.Add(-rest)
		r.ranOut.Add(rest)
	}
}

// tell returns the sums at an instant of the reader's clock. Without a begin the store's clock goes
// on as the reader's does.
func (r *ring) tell(now time.Time) (live, ranOut int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readAt.IsZero() || r.seen > r.read {
		r.read, r.readAt = r.seen, now
	}
	r.passLocked(int64(r.read.Add(now.Sub(r.readAt))/r.width) - 1)
	return r.live.Load(), r.ranOut.Load()
}

func (r *ring) add(until algorithms.Instant, n int64) {
	span := int64(until / r.width)
	if span < r.passed.Load() {
		r.ranOut.Add(n)
		return
	}
	r.spans[span%spansOfRing].Add(n)
	r.live.Add(n)
}

// read returns the number of holders that hold at an instant of the reader's clock, and the number
// that has run out.
func (h *held) read(at time.Time) (now int64, ranOut uint64) {
	all := h.rings.Load()
	if all == nil {
		return 0, 0
	}
	out := int64(0)
	for _, r := range *all {
		live, gone := r.tell(at)
		now, out = now+live, out+gone
	}
	for {
		most := h.most.Load()
		if out <= most {
			return now, uint64(most)
		}
		if h.most.CompareAndSwap(most, out) {
			return now, uint64(out)
		}
	}
}

// ErrNoHolders is the error of [Limiter.Holders] and [Limiter.Release] for entries that no rule
// with holders matches.
var ErrNoHolders = errors.New("no rule with hold matches these entries")

// LimitHolders is the holders of one limit and key.
type LimitHolders struct {
	Limit descriptors.Limit
	Key   string

	Listed bool         // the store can list holders of this limit; else Held and All are zero
	Held   []store.Held // the next one to run out first
	All    int          // the number of all holders
}

// Holders returns the holders of each limit with holders that the entries of a descriptor lead to,
// at most that many of each. The entries need not name a holder. The error is [ErrNoHolders], or
// the error of the store or of ctx.
func (l *Limiter) Holders(ctx context.Context, domain string, entries []Entry, most int) (*descriptors.Rule, []LimitHolders, error) {
	v := Verdict{noGrants: true}
	if _, err := l.prepareHolders(&v, domain, entries); err != nil {
		return nil, nil, err
	}
	all := make([]LimitHolders, len(v.charges))
	for i := range v.charges {
		var err error
		if all[i], err = l.holders(ctx, &v.charges[i], v.terms[i].limit, most); err != nil {
			return nil, nil, err
		}
	}
	return v.Statuses[0].Rule, all, nil
}

func (l *Limiter) holders(ctx context.Context, c *store.Charge, limit *descriptors.Limit, most int) (LimitHolders, error) {
	out := LimitHolders{Limit: *limit, Key: string(c.Key)}
	var err error
	out.Held, out.All, err = l.store.Holders(ctx, c, most)
	if errors.Is(err, store.ErrNotListed) {
		return out, nil
	}
	out.Listed = err == nil
	return out, err
}

// Release ends a holder of each limit with holders that the entries of a descriptor lead to, at no
// cost. A later end of the holder does nothing under a rate limit. Release returns the limits, and
// the hold of the holder before. The entries need not name a holder. The errors are as in
// [Limiter.Holders].
func (l *Limiter) Release(ctx context.Context, domain string, entries []Entry, holder store.Holder) ([]LimitState, error) {
	v := Verdict{noGrants: true}
	counts, err := l.prepareHolders(&v, domain, entries)
	if err != nil {
		return nil, err
	}
	for i := range v.charges {
		hold := v.charges[i].Hold
		hold.Phase, hold.Holder = algorithms.HoldCancel, holder
		v.charges[i].Hits = 0
	}
	if _, err := store.Take(ctx, l.store, v.charges, v.decisions); err != nil {
		return nil, err
	}
	if v.frees() {
		if err := l.takeFurther(ctx, &v); err != nil {
			return nil, err
		}
	}
	if was := v.charges[0].Hold.Was; was.Status == algorithms.HoldHeld {
		holds := &counts.further().holds
		holds.released.Add(1)
		holds.held.end(was)
	}
	all := make([]LimitState, len(v.charges))
	for i := range v.charges {
		all[i] = LimitState{Limit: *v.terms[i].limit, Key: string(v.charges[i].Key), Decision: v.decisions[i], Hold: v.charges[i].Hold}
	}
	return all, nil
}

// prepareHolders prepares the end of some holder, which charges all limits with holders, and
// returns the counts of their rule.
func (l *Limiter) prepareHolders(v *Verdict, domain string, entries []Entry) (*Counts, error) {
	set := l.current.Load()
	var rule *descriptors.Rule
	if d := set.rules.Domain(domain); d != nil {
		rule = d.MatchHolders(entries)
	}
	if rule == nil {
		return nil, ErrNoHolders
	}
	entries = rule.WithHolder(entries, rule.End)
	return set.counts[rule.ID], l.charges(set, &Request{Domain: domain, Descriptors: []Descriptor{{Entries: entries}}}, v)
}

// withHolders returns a request like r that charges all limits of the rules with holders that its
// descriptors lead to. d may be nil.
func withHolders(d *descriptors.Domain, r *Request) *Request {
	if d == nil {
		return r
	}
	begin := *r
	begin.Descriptors = slices.Clone(r.Descriptors)
	for i := range begin.Descriptors {
		entries := begin.Descriptors[i].Entries
		if rule := d.Match(entries); rule != nil && !rule.Holds() {
			continue
		}
		if rule := d.MatchHolders(entries); rule != nil {
			begin.Descriptors[i].Entries = rule.WithHolder(entries, rule.Begin)
		}
	}
	return &begin
}
