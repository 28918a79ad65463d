// Package simulate decides recorded requests anew, under other rules: in virtual time, by the real
// limiter and the real store in memory. The result says which part of the requests the rules would
// deny, and which keys would lose. The package reads no clock and no file.
//
// A simulation may have two sets of rules. Each decides all requests, with counts of its own, and
// the result compares both.
package simulate

import (
	"cmp"
	"errors"
	"sync/atomic"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// DefaultMaxTracked is the default of Options.MaxTracked.
const DefaultMaxTracked = 500_000

// Options configures New. Rules must be set.
type Options struct {
	Rules   *descriptors.Rules
	Against *descriptors.Rules // the rules to compare with; nil: none

	Limiter    limiter.Options
	MaxKeys    int // of the store, as in memstore.Options
	MaxHolds   int // of the store, as in memstore.Options
	MaxTracked int // most keys with a denial whose denials are counted one by one; 0 means DefaultMaxTracked. A key takes about 200 bytes
}

// Simulation decides requests, for one goroutine. Close a Simulation after use.
type Simulation struct {
	now      atomic.Int64 // the instant of the request
	after    *world
	before   *world // nil without other rules
	rules    *descriptors.Rules
	rows     []row // by Rule.ID
	rest     map[restName]*row
	room     int // for keys that are yet to be tracked
	requests requests

	leastPause uint64 // descriptors between two sweeps, at least
	pause      uint64 // descriptors between the last sweep and the next one, at least
	decided    uint64 // descriptors since the last sweep
	swept      algorithms.Instant
}

// world is one set of rules, with its counts.
type world struct {
	store   *memstore.Store
	limiter *limiter.Limiter
	verdict limiter.Verdict
}

// requests counts whole requests.
type requests struct {
	all         uint64
	first, last algorithms.Instant
	denied, was uint64 // under the rules, and under the other ones
	lost, won   uint64 // denied only under the rules, or only under the other ones
	known, over uint64 // with a recorded answer, and with the answer over limit
	refused     uint64
	refusal     error // the first
}

// row counts the descriptors that met one rule.
type row struct {
	requests, hits uint64
	denied, was    uint64 // under the rules, and under the other ones
	lost, won      uint64 // denied only under the rules, or only under the other ones
	shadowed       uint64
	untracked      uint64 // denials of keys that are not tracked
	keys           map[string]*tally
}

// tally counts the denials of a key.
type tally struct{ denied, was uint64 }

// restName names the descriptors of a domain that met no rule.
type restName struct {
	domain string
	kind   rest
}

// rest is a reason why a descriptor met no rule.
type rest uint8

const (
	noRule   rest = iota // nothing matched
	override             // the limit came with the request, and nothing matched
)

// New returns a simulation at the instant 0.
func New(o Options) (*Simulation, error) {
	if o.MaxTracked == 0 {
		o.MaxTracked = DefaultMaxTracked
	}
	s := &Simulation{rules: o.Rules, rows: make([]row, o.Rules.Len()), rest: make(map[restName]*row), room: o.MaxTracked}
	s.leastPause = min(50_000, uint64(max(cmp.Or(o.MaxKeys, memstore.DefaultMaxKeys), 0))/4)
	s.pause = s.leastPause
	var err error
	if s.after, err = s.newWorld(o.Rules, o); err != nil {
		return nil, err
	}
	if o.Against != nil {
		if s.before, err = s.newWorld(o.Against, o); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func (s *Simulation) newWorld(rules *descriptors.Rules, o Options) (*world, error) {
	at := func() algorithms.Instant { return algorithms.Instant(s.now.Load()) }
	store, err := memstore.New(memstore.Options{MaxKeys: o.MaxKeys, MaxHolds: o.MaxHolds, Virtual: at})
	if err != nil {
		return nil, err
	}
	l, err := limiter.New(store, o.Limiter)
	if err != nil {
		store.Close()
		return nil, err
	}
	l.SetRules(rules)
	return &world{store: store, limiter: l}, nil
}

// Close frees the stores.
func (s *Simulation) Close() {
	for _, w := range []*world{s.after, s.before} {
		if w != nil {
			w.store.Close()
		}
	}
}

// Decide decides a request. Requests must come in the order of their instants; an earlier one
// counts as at the last one's instant.
func (s *Simulation) Decide(r *records.Record) {
	q := &s.requests
	q.all++
	if q.all == 1 {
		q.first, q.last = r.At, r.At
	}
	q.last = max(q.last, r.At)
	s.now.Store(int64(q.last))
	s.sweep(&r.Request)
	switch r.Answer {
	case records.OverLimit:
		q.over++
		q.known++
	case records.Passed:
		q.known++
	case records.Unknown:
	}
	err := s.after.decide(&r.Request)
	if s.before != nil {
		err = errors.Join(err, s.before.decide(&r.Request))
	}
	if err != nil {
		if q.refused++; q.refusal == nil {
			q.refusal = err
		}
		return
	}
	denied, was := s.after.verdict.OverLimit, s.before != nil && s.before.verdict.OverLimit
	if denied {
		q.denied++
	}
	if was {
		q.was++
	}
	if denied && !was {
		q.lost++
	}
	if was && !denied {
		q.won++
	}
	for i := range s.after.verdict.Statuses {
		s.count(r, i)
	}
}

// decide decides a request, which a store in memory does at once.
func (w *world) decide(r *limiter.Request) error {
	_, err := w.limiter.CheckNow(r, &w.verdict)
	return err
}

// count counts a descriptor of the request that was decided.
func (s *Simulation) count(r *records.Record, i int) {
	after := &s.after.verdict.Statuses[i]
	to := s.row(r.Request.Domain, after)
	to.requests++
	if after.Hits > 0 {
		to.hits += uint64(after.Hits)
	}
	if after.Shadowed {
		to.shadowed++
	}
	was := false
	if s.before != nil {
		was = s.before.verdict.Statuses[i].OverLimit
	}
	if !after.OverLimit && !was {
		return
	}
	if after.OverLimit {
		to.denied++
	}
	if was {
		to.was++
	}
	if after.OverLimit && !was {
		to.lost++
	}
	if was && !after.OverLimit {
		to.won++
	}
	t := s.tally(to, i)
	if t == nil {
		to.untracked++
		return
	}
	if after.OverLimit {
		t.denied++
	}
	if was {
		t.was++
	}
}

// row returns the row of a descriptor.
func (s *Simulation) row(domain string, d *limiter.DescriptorStatus) *row {
	if d.Rule != nil {
		return &s.rows[d.Rule.ID]
	}
	name := restName{domain, noRule}
	if d.Overridden || d.Outcome == limiter.Limited {
		name.kind = override
	}
	to := s.rest[name]
	if to == nil {
		to = new(row)
		if len(s.rest) < maxRest {
			name.domain = string([]byte(domain)) // the record is used again
		} else if name.domain = otherDomains; s.rest[name] != nil {
			return s.rest[name]
		}
		s.rest[name] = to
	}
	return to
}

// Bounds of the rows without a rule: clients choose domains.
const (
	maxRest      = 1000
	otherDomains = "other domains"
)

// tally returns the tally of the key of descriptor i: the first that the rules charge, else the
// first that the other rules charge. The result is nil if there is no room.
func (s *Simulation) tally(to *row, i int) *tally {
	for _, w := range []*world{s.after, s.before} {
		if w == nil {
			continue
		}
		for c := range w.verdict.Charged(i) {
			if t := to.keys[string(c.Key)]; t != nil {
				return t
			}
			if s.room == 0 {
				return nil
			}
			s.room--
			if to.keys == nil {
				to.keys = make(map[string]*tally)
			}
			t := new(tally)
			to.keys[string(c.Key)] = t
			return t
		}
	}
	return nil
}
