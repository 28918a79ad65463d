package limiter

import (
	"maps"
	"strconv"
	"sync"
	"sync/atomic"

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

// partSuffix and the number of a partLimit make the key of its states from the key of a limit.
const partSuffix = "#part/"

// divided is the parts of a limiter.
type divided struct {
	table atomic.Pointer[partTable] // nil until a limit has a part
	last  atomic.Uint64             // number of a partLimit
	mu    sync.Mutex                // held while the table changes
}

// Asked returns the hits that requests have asked for, allowed or not. Probes and refunds do not
// count.
func (p *Part) Asked() uint64 { return p.asked.Load() }

// partShards is the number of parts of a partTable. A change copies one.
const partShards = 1024

// partTable finds the part of a key by the hash of the key. Readers take no lock.
type partTable [partShards]atomic.Pointer[map[string]*Part]

func (t *partTable) of(c *store.Charge) *Part {
	if all := t[c.Hash%partShards].Load(); all != nil {
		return (*all)[string(c.Key)]
	}
	return nil
}

func (t *partTable) set(key string, p *Part) {
	shard, next := &t[store.HashOf([]byte(key))%partShards], make(map[string]*Part)
	if all := shard.Load(); all != nil {
		maps.Copy(next, *all)
	}
	if next[key] = p; p == nil {
		delete(next, key)
	}
	if shard.Store(&next); len(next) == 0 {
		shard.Store(nil)
	}
}

// SetPart gives a part the limit, a token bucket, for requests that begin from now on. The part
// holds for all requests that are charged for one of the keys, of one rule. The bucket is a new
// one, which starts full, or empty. The part must not be of other keys.
func (l *Limiter) SetPart(p *Part, keys []string, limit algorithms.Limit, empty bool) {
	next := &partLimit{descriptors.Limit{Limit: limit}, partSuffix + strconv.FormatUint(l.divided.last.Add(1), 36)}
	if empty && limit.Requests > 0 {
		for _, key := range keys {
			c := [1]store.Charge{{Key: []byte(key + next.suffix), Limit: limit, Hits: int64(limit.Capacity()), Mode: store.Shadow}}
			l.store.TakeNow(c[:], make([]algorithms.Decision, 1))
		}
	}
	p.current.Store(next)
	l.divided.mu.Lock()
	defer l.divided.mu.Unlock()
	t := l.divided.table.Load()
	if t == nil {
		t = new(partTable)
		l.divided.table.Store(t)
	}
	for _, key := range keys {
		t.set(key, p)
	}
}

// EndPart ends the part of these keys.
func (l *Limiter) EndPart(keys []string) {
	l.divided.mu.Lock()
	defer l.divided.mu.Unlock()
	for _, key := range keys {
		l.divided.table.Load().set(key, nil)
	}
}

// part adds the charge of the part that the descriptor's limits have, if they have one.
func (l *Limiter) part(c *charging, all *partTable) {
	v := c.verdict
	s := &v.Statuses[c.at]
	for i := s.charge; i < len(v.charges); i++ {
		p := all.of(&v.charges[i])
		if p == nil {
			continue
		}
		now, like := p.current.Load(), v.charges[i]
		from := len(v.keys)
		v.keys = append(append(v.keys, like.Key...), now.suffix...)
		key := v.keys[from:]
		v.charges = append(v.charges, store.Charge{
			Key: key, Hash: store.HashOf(key), Limit: now.limit.Limit, Hits: s.Hits,
			Rule: like.Rule, Mode: like.Mode, OnError: like.OnError, Exact: true,
		})
		v.terms = append(v.terms, term{limit: &now.limit, hits: s.Hits, part: true})
		if s.Hits > 0 && !v.explains {
			p.asked.Add(uint64(s.Hits))
		}
		return
	}
}

// undivided returns the charges of entries without a part, one for each limit of their rule.
func (l *Limiter) undivided(domain string, entries []Entry) (v Verdict, err error) {
	r := Request{Domain: domain, Descriptors: []Descriptor{{Entries: entries}}}
	v.noPart = true
	err = l.charges(l.current.Load(), &r, &v)
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
