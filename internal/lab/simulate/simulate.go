// Package simulate decides recorded requests anew, under other rules: in virtual time, by the real
// limiter and the real store in memory. The result says which part of the requests the rules would
// deny, and which keys would lose. The package reads no clock and no file.
//
// A simulation may have two sets of rules. Each decides all requests, with counts of its own, and
// the result compares both.
package simulate

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	"github.com/weirproxy/weir/internal/lab"
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

	MaxKeys    int // of the store, and most holders in it, as in memstore.Options
	MaxTracked int // most keys with a denial whose denials are counted one by one; 0 means DefaultMaxTracked. A key takes about 200 bytes
}

// Simulation decides requests, for one goroutine. Close a Simulation after use.
type Simulation struct {
	worlds  []*world // of the rules, and then of the rules to compare with
	rules   *descriptors.Rules
	rows    []row // by Rule.ID
	rest    map[restName]*row
	room    int // for keys that are yet to be tracked
	sum     Result
	first   algorithms.Instant // of all requests
	last    algorithms.Instant
	refusal error // the first

	leastPause uint64 // descriptors between two sweeps, at least
	pause      uint64 // descriptors between the last sweep and the next one, at least
	decided    uint64 // descriptors since the last sweep
	swept      algorithms.Instant
}

type world struct {
	*lab.World
	verdict limiter.Verdict
}

type row struct {
	Rule
	keys map[string]*tally
}

type tally struct{ denied, was uint64 }

type restName struct {
	domain string
	kind   string
}

// New returns a simulation at the instant 0.
func New(o Options) (*Simulation, error) {
	s := &Simulation{
		rules: o.Rules, rows: make([]row, o.Rules.Len()), rest: make(map[restName]*row), room: cmp.Or(o.MaxTracked, DefaultMaxTracked),
	}
	s.leastPause = min(50_000, uint64(max(cmp.Or(o.MaxKeys, memstore.DefaultMaxKeys), 0))/4)
	s.pause = s.leastPause
	if o.Against != nil {
		s.sum.CarryOver, s.sum.StartAnew = descriptors.Carried(o.Rules.Follow(o.Against))
	}
	for _, rules := range []*descriptors.Rules{o.Rules, o.Against} {
		if rules == nil {
			continue
		}
		w, err := lab.New(rules, memstore.Options{MaxKeys: o.MaxKeys, MaxHolds: o.MaxKeys})
		if err != nil {
			s.Close()
			return nil, err
		}
		s.worlds = append(s.worlds, &world{World: w})
	}
	return s, nil
}

// Close frees the stores.
func (s *Simulation) Close() {
	for _, w := range s.worlds {
		w.Close()
	}
}

// Decide decides a request. Requests must come in the order of their instants; an earlier one
// counts as at the last one's instant.
func (s *Simulation) Decide(r *records.Record) {
	sum := &s.sum
	if sum.Requests++; sum.Requests == 1 {
		s.first, s.last = r.At, r.At
	}
	s.last = max(s.last, r.At)
	for _, w := range s.worlds {
		w.SetTime(s.last)
	}
	s.sweep(&r.Request)
	if r.Answer != records.Unknown {
		sum.Recorded++
	}
	if r.Answer == records.OverLimit {
		sum.RecordedDenied++
	}
	var err error
	for _, w := range s.worlds {
		err = errors.Join(err, w.Check(context.Background(), &r.Request, &w.verdict)) // a store in memory does not wait
	}
	if err != nil {
		if sum.Refused++; s.refusal == nil {
			s.refusal = err
		}
		return
	}
	after := &s.worlds[0].verdict
	sum.add(after.OverLimit, len(s.worlds) > 1 && s.worlds[1].verdict.OverLimit)
	for i := range after.Statuses {
		s.count(r, i)
	}
}

func (s *Simulation) count(r *records.Record, i int) {
	after := &s.worlds[0].verdict.Statuses[i]
	to := s.row(r.Request.Domain, after)
	to.Requests++
	if after.Hits > 0 {
		to.Hits += uint64(after.Hits)
	}
	if after.Shadowed {
		to.Shadowed++
	}
	was := len(s.worlds) > 1 && s.worlds[1].verdict.Statuses[i].OverLimit
	if !after.OverLimit && !was {
		return
	}
	to.add(after.OverLimit, was)
	t := s.tally(to, i)
	if t == nil {
		to.AtLeast = true
		return
	}
	if after.OverLimit {
		t.denied++
	}
	if was {
		t.was++
	}
}

// Bounds of the rows without a rule: clients choose domains.
const (
	maxRest      = 1000
	otherDomains = "other domains"
)

func (s *Simulation) row(domain string, d *limiter.DescriptorStatus) *row {
	if d.Rule != nil {
		return &s.rows[d.Rule.ID]
	}
	name := restName{domain, kindNone}
	if d.Overridden || d.Outcome == limiter.Limited {
		name.kind = kindOverride
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

// tally returns the tally of the first key that any rules charge, or nil without room for it.
func (s *Simulation) tally(to *row, i int) *tally {
	for _, w := range s.worlds {
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

// sweep lets the stores forget idle keys, at most as often in virtual time as a service does in
// real time. A sweep visits all keys, so about as many descriptors must come before the next one as
// there are keys. There are fewer if the room for keys or holders is small.
func (s *Simulation) sweep(r *limiter.Request) {
	s.decided += uint64(len(r.Descriptors))
	if s.decided < s.pause || time.Duration(s.last-s.swept) < memstore.DefaultSweepInterval {
		return
	}
	s.decided, s.swept = 0, s.last
	kept, room := 0, math.MaxInt
	for _, w := range s.worlds {
		w.Counts.Sweep()
		st := w.Counts.Stats()
		holders := st.HoldersHeld + st.HoldersDenied + st.HoldersEnded
		kept += st.Places + holders
		room = min(room, st.MaxKeys-st.Places, st.MaxHolds-holders)
	}
	s.pause = max(s.leastPause, uint64(max(min(kept, room/4), 0)))
}
