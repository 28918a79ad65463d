package limiter

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Part is the part of requests in a limit that is also divided among clients that count by
// themselves. While a limit has a part, a request is charged under both. See [Limiter.SetPart]. All
// methods are safe for concurrent use. The zero value has no limit yet.
type Part struct {
	asked   atomic.Uint64
	current atomic.Pointer[partLimit]
}

// partLimit is the limit of a part now. Each one has states of its own.
type partLimit struct {
	limit  descriptors.Limit
	suffix string
}

// partSuffix and the number of a partLimit make the key of its states from the base of the keys.
const partSuffix = "#part/"

// divided is the parts of a limiter.
type divided struct {
	table  atomic.Pointer[partTable] // nil until a limit has a part
	last   atomic.Uint64             // number of a partLimit
	mu     sync.Mutex                // held while the table changes
	shared atomic.Pointer[sharedParts]
}

// sharedParts is for parts in a store that other processes use too.
type sharedParts struct {
	process string // in the keys of parts
	want    func(domain string, entries []Entry)
	none    Part
	now     func() time.Duration
	until   atomic.Int64 // by now, then parts do not hold
}

// ShareParts is for a limiter whose store other processes use too. From now on, requests need a
// part of each rule that is Divided, and are denied without one. Then the limiter calls want, on
// the goroutine of the request: want must not wait, and must not keep entries. The name of the
// process must be another one in each process. now is the time since a fixed moment, also while the
// process was stopped. Parts hold until the instant of [Limiter.KeepParts].
func (l *Limiter) ShareParts(process string, now func() time.Duration, want func(domain string, entries []Entry)) {
	s := &sharedParts{process: process, want: want, now: now}
	nothing := algorithms.Limit{Algorithm: algorithms.TokenBucket, Period: time.Second}
	s.none.current.Store(&partLimit{descriptors.Limit{Limit: nothing}, partSuffix + "none"})
	s.until.Store(-1)
	l.divided.shared.Store(s)
}

// KeepParts lets the parts hold until an instant, after ShareParts. Later requests that need a part
// are denied.
func (l *Limiter) KeepParts(until time.Duration) { l.divided.shared.Load().until.Store(int64(until)) }

// Asked returns the hits that requests have asked for, allowed or not. Probes and refunds do not
// count.
func (p *Part) Asked() uint64 { return p.asked.Load() }

// partShards is the number of parts of a partTable. A change copies one.
const partShards = 1024

// partTable finds a part by the base of the keys of its limits. Readers take no lock.
type partTable [partShards]atomic.Pointer[map[string]*Part]

func (t *partTable) of(base []byte) *Part {
	if t == nil {
		return nil
	}
	if all := t[store.HashOf(base)%partShards].Load(); all != nil {
		return (*all)[string(base)]
	}
	return nil
}

func (t *partTable) set(base string, p *Part) {
	shard, next := &t[store.HashOf([]byte(base))%partShards], make(map[string]*Part)
	if all := shard.Load(); all != nil {
		maps.Copy(next, *all)
	}
	if next[base] = p; p == nil {
		delete(next, base)
	}
	if shard.Store(&next); len(next) == 0 {
		shard.Store(nil)
	}
}

// SetPart gives a part the limit, a token bucket, for requests that begin from now on. The part
// holds for all requests with charges under keys with the base, also after a change of the rules,
// see [descriptors.Limit.Base]. The bucket is a new one, which starts full, or empty. The part must
// not be of another base.
func (l *Limiter) SetPart(p *Part, base string, limit algorithms.Limit, empty bool) {
	next := &partLimit{descriptors.Limit{Limit: limit}, partSuffix + strconv.FormatUint(l.divided.last.Add(1), 36)}
	if s := l.divided.shared.Load(); s != nil {
		next.suffix += "/" + s.process
	}
	if empty && limit.Requests > 0 {
		c := [1]store.Charge{{Key: []byte(base + next.suffix), Limit: limit, Hits: int64(limit.Capacity()), Mode: store.Shadow}}
		l.store.TakeNow(c[:], make([]algorithms.Decision, 1))
	}
	p.current.Store(next)
	l.divided.mu.Lock()
	defer l.divided.mu.Unlock()
	t := l.divided.table.Load()
	if t == nil {
		t = new(partTable)
		l.divided.table.Store(t)
	}
	t.set(base, p)
}

// EndPart ends the part of a base, which has one.
func (l *Limiter) EndPart(base string) {
	l.divided.mu.Lock()
	defer l.divided.mu.Unlock()
	l.divided.table.Load().set(base, nil)
}

// part adds the charge of the part that the descriptor's limits have, if they have one.
func (l *Limiter) part(c *charging, all *partTable) {
	v := c.verdict
	s := &v.Statuses[c.at]
	if s.charge == len(v.charges) {
		return
	}
	like := v.charges[s.charge]
	base := v.terms[s.charge].limit.Base(like.Key)
	p, shared := all.of(base), l.divided.shared.Load()
	switch {
	case shared == nil:
	case p == nil && s.Rule.Divided && !l.options.Shadow:
		p = &shared.none
		if s.Hits > 0 && !v.explains {
			shared.want(c.request.Domain, c.request.Descriptors[c.at].Entries)
		}
	case p != nil && int64(shared.now()) > shared.until.Load():
		p = &shared.none
	}
	if p == nil {
		return
	}
	for i := s.charge; i < len(v.charges); i++ { // else hits that the part denies fill the limit
		v.charges[i].CountRejected = false
	}
	now, from := p.current.Load(), len(v.keys)
	v.keys = append(append(v.keys, base...), now.suffix...)
	key := v.keys[from:]
	v.charges = append(v.charges, store.Charge{
		Key: key, Hash: store.HashOf(key), Limit: now.limit.Limit, Hits: s.Hits,
		Rule: like.Rule, Mode: like.Mode, OnError: like.OnError, Exact: true,
	})
	v.terms = append(v.terms, term{limit: &now.limit, hits: s.Hits, part: true})
	if s.Hits > 0 && !v.explains {
		p.asked.Add(uint64(s.Hits))
	}
}

// undivided returns the charges of entries without a part and without guards, one for each limit of
// their rule.
func (l *Limiter) undivided(domain string, entries []Entry) (v Verdict, err error) {
	r := Request{Domain: domain, Descriptors: []Descriptor{{Entries: entries}}}
	v.noPart = true
	err = l.charges(l.current.Load(), &r, &v)
	v.charges = slices.DeleteFunc(v.charges, func(c store.Charge) bool { return c.Limit.Algorithm == algorithms.Escalation })
	return v, err
}

// Left returns the decisions on no hits by the counts of entries, in the order of Dividend.Limits,
// without the part of requests. Only a store in this process may be asked.
func (l *Limiter) Left(domain string, entries []Entry) ([]algorithms.Decision, error) {
	v, err := l.undivided(domain, entries)
	if err != nil {
		return nil, err
	}
	for i := range v.charges {
		v.charges[i].Hits = 0
	}
	l.store.TakeNow(v.charges, v.decisions)
	return v.decisions[:len(v.charges)], nil
}

// Spend charges hits to the counts of entries, in the order of Left, all or none. Negative hits are
// given back. Spend reports whether it has charged. Only a store in this process may be asked.
func (l *Limiter) Spend(domain string, entries []Entry, hits []int64) bool {
	v, err := l.undivided(domain, entries)
	if err != nil || len(v.charges) != len(hits) {
		return false
	}
	charges := v.charges[:0]
	for i, n := range hits {
		if n != 0 {
			c := v.charges[i]
			c.Hits, c.Mode, c.CountRejected = n, store.Enforce, false
			charges = append(charges, c)
		}
	}
	if len(charges) == 0 {
		return true
	}
	admitted, decided := l.store.TakeNow(charges, v.decisions)
	return admitted && decided
}
