package memstore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// forgetful is the plainest store that forgets: it knows the exact state of every key, and learns
// from a Store which keys are gone.
type forgetful struct {
	s    *Store
	keys map[digest]known // that the Store must remember
	logs bool             // most charges go to few logs
}

// transaction decides the charges and returns the keys that the Store should then remember. With
// full, new keys are not remembered. The logs of the keys in joined found no place to grow.
func (m *forgetful) transaction(
	charges []store.Charge, now algorithms.Instant, forgotten, joined []digest, full bool,
) (admitted bool, decisions []algorithms.Decision, after map[digest]known) {
	before := maps.Clone(m.keys)
	for _, key := range forgotten {
		delete(before, key)
	}
	after = maps.Clone(before)
	take := func(c *store.Charge, hits int64) algorithms.Decision {
		key := m.s.digest(c)
		k := after[key]
		d := k.take(c, hits, now)
		after[key] = k
		return d
	}
	grows := func(key digest) bool {
		_, old := before[key]
		k := after[key]
		return !old && !k.unused()
	}
	decisions = make([]algorithms.Decision, len(charges))
	for i := range charges {
		c := &charges[i]
		decisions[i] = take(c, c.Hits)
		if full && m.s.onFull == Deny && grows(m.s.digest(c)) {
			decisions[i] = algorithms.Decision{}
		}
	}
	admitted = store.Admitted(charges, decisions)
	if !admitted {
		after = maps.Clone(before)
		for i := range charges {
			c := &charges[i]
			hits := c.Hits
			if !c.CountRejected {
				hits = 0
			}
			d := take(c, hits)
			if !c.CountRejected {
				d.Allowed, d.RetryAfter = true, 0
			}
			if decisions[i].Allowed {
				decisions[i] = d
				continue
			}
			k := after[m.s.digest(c)]
			k.deny(c, c.Hits, false)
			after[m.s.digest(c)] = k
		}
	}
	for _, key := range joined {
		k := after[key]
		k.log = slices.Clone(k.log)
		k.log[len(k.log)-1].joins = true
		after[key] = k
	}
	for key, k := range after {
		if k.unused() || full && grows(key) {
			delete(after, key)
		}
	}
	return admitted, decisions, after
}

// gone returns the keys that the Store does not remember any more, and their number.
func (m *forgetful) gone() (keys []digest) {
	for key := range m.keys {
		if _, ok := m.s.shardOf(key).table.find(key); !ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// compare returns an error unless the Store remembers exactly the keys, each in its exact state.
func (m *forgetful) compare() error {
	for key, k := range m.keys {
		sh := m.s.shardOf(key)
		place, ok := sh.table.find(key)
		if !ok {
			return fmt.Errorf("a key is gone: %+v", k)
		}
		slot := &sh.table.slots[place]
		if limit := *sh.limits.of(slot.limit()); limit != k.limit {
			return fmt.Errorf("a key has the limit %+v; want %+v", limit, k.limit)
		}
		if k.limit.Algorithm.HasState() && slot.state != k.state {
			return fmt.Errorf("a key has the state %+v; want %+v", slot.state, k.state)
		}
		if len(k.log) > 0 {
			got, want := k.alive(sh.logs.of(slot.state), m.s.now()), k.alive(k.played(), m.s.now())
			if !slices.Equal(got, want) {
				return fmt.Errorf("a log has the entries %v; want %v", got, want)
			}
		}
		if now := m.s.now(); max(sh.idleAtLocked(slot), now) != max(k.idleAt(), now) {
			return fmt.Errorf("a key is idle at %d; want %d: %+v", sh.idleAtLocked(slot), k.idleAt(), k)
		}
		if got := slot.denied().hits(); got < k.denied {
			return fmt.Errorf("a key denied for %d hits is remembered as denied for %d", k.denied, got)
		}
	}
	if got, want := m.s.Stats().Keys, len(m.keys); got != want {
		return fmt.Errorf("the store has %d keys; want %d", got, want)
	}
	return m.comparePlaces()
}

// comparePlaces returns an error unless the places of all keys are within the bound, and enough for
// their slots and entries.
func (m *forgetful) comparePlaces() error {
	least := 0
	for _, k := range m.keys {
		least++
		if len(k.log) > 0 {
			least += (logBytes + 16*k.played().Len() + placeBytes - 1) / placeBytes
		}
	}
	if got := m.s.Stats().Places; got < least {
		return fmt.Errorf("the keys take %d places; want at least %d", got, least)
	}
	return m.s.checkPlaces()
}

// modelSeeds returns the number of seeds, from the environment for a long run.
func modelSeeds() int {
	if n, err := strconv.Atoi(os.Getenv("WEIR_EVICTION_SEEDS")); err == nil {
		return n
	}
	return 20
}

// TestRandomTransactionsAtTheBoundForgetOnlyKeysThatMayGo plays random transactions to a store at
// its bound and to a forgetful one.
func TestRandomTransactionsAtTheBoundForgetOnlyKeysThatMayGo(t *testing.T) {
	race.Without(t)
	var evicted, full, joined uint64
	for seed := range uint64(max(5, race.Scale(modelSeeds()))) {
		r := rand.New(rand.NewPCG(seed, 2))
		o := Options{
			MaxKeys:       []int{1, 3, 20, 60, 600}[r.IntN(5)],
			OnFull:        OnFull(r.IntN(2)),
			SweepInterval: []time.Duration{5 * time.Second, 1000 * time.Hour}[r.IntN(2)],
		}
		t.Run(fmt.Sprintf("seed %d %+v", seed, o), func(t *testing.T) {
			inBubble(t, o, func(t *testing.T, s *Store) {
				m := &forgetful{s: s, keys: map[digest]known{}, logs: seed%2 == 1}
				m.fill(t, r)
				for step := range 1500 {
					m.step(t, r, step)
				}
				st := s.Stats()
				evicted, full, joined = evicted+st.Evicted, full+st.FullAllowed+st.FullDenied, joined+st.FullJoined
			})
		})
	}
	t.Logf("%d evictions, %d decisions and %d logs without room", evicted, full, joined)
	if evicted < 1000 || full < 100 || joined == 0 {
		t.Errorf("%d evictions, %d decisions without room and %d logs without room are too few to show anything", evicted, full, joined)
	}
}

// fill brings the store to its bound.
func (m *forgetful) fill(t *testing.T, r *rand.Rand) {
	for i := 0; m.s.Stats().Places < int(m.s.maxKeys) && m.s.Stats().Evicted == 0 && i < 10*int(m.s.maxKeys); i++ {
		c := m.charge(r)
		c.Key, c.Hits = fmt.Append(nil, "fill ", i), 1
		m.play(t, r, []store.Charge{c})
	}
}

// step does one random thing.
func (m *forgetful) step(t *testing.T, r *rand.Rand, step int) {
	t.Helper()
	if r.IntN(20) == 0 {
		scale := []time.Duration{time.Millisecond, 100 * time.Millisecond, 7 * time.Second, 31 * time.Second, 5 * time.Minute}
		time.Sleep(scale[r.IntN(len(scale))] + time.Duration(r.IntN(1000))*time.Microsecond)
		synctest.Wait()
		for _, key := range m.gone() {
			if k := m.keys[key]; k.idleAt() > m.s.now() {
				t.Fatalf("step %d: the sweep freed a key that is not idle: %+v", step, k)
			}
			delete(m.keys, key)
		}
	}
	time.Sleep(time.Duration(r.IntN(3))) // a log has an entry for each instant
	charges := make([]store.Charge, 1+r.IntN(4)*r.IntN(2))
	for i := range charges {
		charges[i] = m.charge(r)
		charges[i].Rule = i
		charges[i].Mode = store.Mode(r.IntN(4))
	}
	switch r.IntN(12) {
	case 0:
		forgotten, err := m.s.Reset(t.Context(), charges)
		before := len(m.keys)
		for i := range charges {
			delete(m.keys, m.s.digest(&charges[i]))
		}
		if want := before - len(m.keys); err != nil || forgotten != want {
			t.Fatalf("step %d: Reset forgot %d, %v; want %d", step, forgotten, err, want)
		}
	case 1:
		got := make([]algorithms.Decision, 1)
		if err := m.s.Peek(t.Context(), charges[:1], got); err != nil {
			t.Fatal(err)
		}
		k := m.keys[m.s.digest(&charges[0])]
		if want := k.take(&charges[0], charges[0].Hits, m.s.now()); got[0] != want {
			t.Fatalf("step %d: Peek gives %+v; want %+v", step, got[0], want)
		}
	default:
		m.play(t, r, charges)
	}
	if err := m.compare(); err != nil {
		t.Fatalf("step %d: %v", step, err)
	}
}

// play applies a transaction to both and compares. A transaction of several keys may make room by
// forgetting keys of its own, and then decides about these as new ones.
func (m *forgetful) play(t *testing.T, r *rand.Rand, charges []store.Charge) {
	t.Helper()
	now, before := m.s.now(), m.s.Stats()
	got := make([]algorithms.Decision, len(charges))
	admitted, err := store.Take(t.Context(), m.s, charges, got)
	if err != nil {
		t.Fatal(err)
	}
	st := m.s.Stats()
	full := st.FullAllowed+st.FullDenied > before.FullAllowed+before.FullDenied
	joined := int(st.FullJoined - before.FullJoined)
	var may, logs []digest // keys of the transaction that may have been forgotten for others of it; logs that may have joined hits
	for i := range charges {
		key := m.s.digest(&charges[i])
		k, ok := m.keys[key]
		if ok && len(charges) > 1 && st.Evicted > before.Evicted && !slices.Contains(may, key) && k.wait(k.denied, now) == 0 {
			may = append(may, key)
		}
		if ok && joined > 0 && len(k.log) > 0 && !slices.Contains(logs, key) {
			logs = append(logs, key)
		}
	}
	was := m.keys
	var mismatch error
	for subset := range 1 << (len(may) + len(logs)) {
		var forgotten, joins []digest
		for i, key := range slices.Concat(may, logs) {
			switch {
			case subset>>i&1 == 0:
			case i < len(may):
				forgotten = append(forgotten, key)
			default:
				joins = append(joins, key)
			}
		}
		if len(joins) != joined {
			continue
		}
		m.keys = was
		wantAdmitted, want, after := m.transaction(charges, now, forgotten, joins, full)
		for i := range want {
			if full && want[i] == (algorithms.Decision{}) && !got[i].Allowed && got[i].RetryAfter > 0 {
				want[i] = got[i] // checkFull checks the wait
			}
		}
		if admitted != wantAdmitted || !slices.Equal(got, want) {
			mismatch = fmt.Errorf("decided as %v %+v; want %v %+v", admitted, got, wantAdmitted, want)
			continue
		}
		m.keys = after
		m.forget(t, was, now, st.Evicted-before.Evicted)
		if mismatch = m.compare(); mismatch == nil {
			if (full || joined > 0) && len(charges) == 1 {
				m.checkFull(t, &charges[0], got[0], now)
			}
			return
		}
	}
	t.Fatalf("full %v: charges %+v: %v", full, charges, mismatch)
}

// forget drops the keys that are gone after a transaction.
func (m *forgetful) forget(t *testing.T, was map[digest]known, now algorithms.Instant, evicted uint64) {
	t.Helper()
	for _, key := range m.gone() {
		k, ok := was[key]
		if !ok {
			t.Fatalf("a new key is not remembered: %+v", m.keys[key])
		}
		if wait := k.wait(k.denied, now); wait > 0 {
			t.Fatalf("a key that is denied for %d hits for %v more was forgotten: %+v", max(k.denied, 1), wait, k)
		}
		delete(m.keys, key)
		if evicted--; evicted+1 == 0 {
			t.Fatal("more keys are gone than were counted")
		}
	}
}

// checkFull fails the test unless each other key is denied now, for its last denied hits as the
// store rounds them. A key that needs more places than the store has proves nothing. The new key
// may wait for less time, as denied hits that count make another key open later.
func (m *forgetful) checkFull(t *testing.T, c *store.Charge, d algorithms.Decision, now algorithms.Instant) {
	t.Helper()
	own, needs := m.s.digest(c), 1
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		k := m.keys[own]
		needs += placesOf(16 * max(1, 2*k.played().Len())) // a log without room is full; its length is a power of two
	}
	if needs > int(m.s.maxKeys) {
		return
	}
	opens := time.Duration(never)
	for key, k := range m.keys {
		if key == own {
			continue
		}
		sh := m.s.shardOf(key)
		place, _ := sh.table.find(key)
		wait := k.wait(sh.table.slots[place].denied().hits(), now)
		if wait == 0 {
			t.Fatalf("a new key finds no room though a key may go: %+v", k)
		}
		opens = min(opens, wait)
	}
	if _, known := m.keys[own]; !known && m.s.onFull == Deny && (d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > opens || d.ResetAfter != d.RetryAfter) {
		t.Fatalf("a new key in a full store: %+v; want a wait of at most %v", d, opens)
	}
}

// charge returns a charge of one of few hundred keys. With logs, most charges go to a few logs, or
// to keys that are denied after a hit.
func (m *forgetful) charge(r *rand.Rand) store.Charge {
	a, keys := algorithms.RateAlgorithms()[r.IntN(len(algorithms.RateAlgorithms()))], 100
	switch {
	case m.logs && r.IntN(2) > 0:
		a, keys = algorithms.SlidingWindowLog, 10
	case m.logs && r.IntN(2) > 0: // keys that are denied fill the store
		spent := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: 1000 * time.Hour}
		return store.Charge{Key: fmt.Append(nil, "key ", r.IntN(keys)), Limit: spent, Hits: 1}
	}
	l := algorithms.Limit{Algorithm: a, Requests: uint32(r.IntN(12)), Period: []time.Duration{time.Minute, time.Second}[r.IntN(8)/7]}
	if r.IntN(10) == 0 {
		l.Requests = 100
	}
	if a == algorithms.TokenBucket && l.Requests > 0 && r.IntN(2) == 0 {
		l.Burst = 1 + uint32(r.IntN(40))
	}
	hits := int64(r.IntN(9) - 2)
	if r.IntN(10) == 0 {
		hits = int64(r.IntN(120))
	}
	return store.Charge{Key: fmt.Append(nil, "key ", r.IntN(keys)), Limit: l, Hits: hits, CountRejected: r.IntN(3) == 0}
}
