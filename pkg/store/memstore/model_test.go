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

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// forgetful is a model of a store that forgets. It learns from a Store which keys are gone.
type forgetful struct {
	s      *Store
	keys   model.Keys            // that the Store must remember
	denied map[model.Name]uint64 // hits last denied, at most the capacity; 0: no denial since as many passed
	logs   bool                  // most charges go to few logs
}

// digest returns the digest of a name.
func (m *forgetful) digest(n model.Name) digest {
	return m.s.digest(&store.Charge{Key: []byte(n.Key), Limit: algorithms.Limit{Algorithm: n.Algorithm, Period: n.Period}})
}

// transaction decides the charges and makes the keys and denied hits those that the Store should
// then remember. With full, new keys are not remembered. The logs in joined found no place to grow.
func (m *forgetful) transaction(charges []store.Charge, now algorithms.Instant, forgotten, joined []model.Name, full bool) model.Answer {
	m.keys, m.denied = maps.Clone(m.keys), maps.Clone(m.denied)
	for _, name := range forgotten {
		delete(m.keys, name)
		delete(m.denied, name)
	}
	before := maps.Clone(m.keys)
	refused := func(name model.Name, k model.Key) bool {
		_, old := before[name]
		return full && !old && !k.Unused()
	}
	a := m.keys.TakeWith(charges, now, func(name model.Name, after model.Key, d algorithms.Decision) algorithms.Decision {
		if refused(name, after) && m.s.onFull == Deny {
			return algorithms.Decision{}
		}
		return d
	})
	for i := range charges {
		c, d, name := &charges[i], a.Decisions[i], model.NameOf(&charges[i])
		if was := before[name]; !was.State.Unused() && m.keys[name].State == was.State && was.IdleAt() <= now {
			if state, _, _ := algorithms.TakeAs(was.Limit, c.Limit, was.State, now, 0, algorithms.Refuse); state.Unused() {
				delete(m.keys, name) // a probe or a denial drops an idle state here
			}
		}
		switch {
		case c.Hits <= 0 || c.Limit.Requests == 0:
		case !d.Allowed:
			m.denied[name] = min(uint64(c.Hits), c.Limit.Capacity())
		case (a.Admitted || c.CountRejected) && uint64(c.Hits) >= m.denied[name]:
			delete(m.denied, name)
		}
	}
	for _, name := range joined {
		m.keys[name] = m.keys[name].Join()
	}
	maps.DeleteFunc(m.keys, refused)
	maps.DeleteFunc(m.denied, func(name model.Name, _ uint64) bool { return m.keys[name].Unused() })
	return a
}

// wait returns how long a key is denied for hits, under its last limit. 0: the key may be
// forgotten.
func wait(k model.Key, hits uint64, now algorithms.Instant) time.Duration {
	if k.Limit.Requests == 0 {
		return 0
	}
	hits = min(max(hits, 1), k.Limit.Capacity())
	_, d := k.Take(&store.Charge{Limit: k.Limit}, int64(hits), now)
	return d.RetryAfter
}

// gone returns the keys that the Store does not remember any more.
func (m *forgetful) gone() (keys []model.Name) {
	for name := range m.keys {
		key := m.digest(name)
		if _, ok := m.s.shardOf(key).table.find(key); !ok {
			keys = append(keys, name)
		}
	}
	return keys
}

// compare returns an error unless the Store remembers exactly the keys, each in its exact state.
func (m *forgetful) compare() error {
	for name, k := range m.keys {
		key := m.digest(name)
		sh := m.s.shardOf(key)
		place, ok := sh.table.find(key)
		if !ok {
			return fmt.Errorf("a key is gone: %+v", k)
		}
		slot := &sh.table.slots[place]
		if limit := *sh.limits.of(slot.limit()); limit != k.Limit {
			return fmt.Errorf("a key has the limit %+v; want %+v", limit, k.Limit)
		}
		if k.Limit.Algorithm.HasState() && slot.state != k.State {
			return fmt.Errorf("a key has the state %+v; want %+v", slot.state, k.State)
		}
		now := m.s.now()
		if !k.Limit.Algorithm.HasState() {
			if got, want := alive(sh.logs.of(slot.state), k.Limit, now), alive(k.Log(), k.Limit, now); !slices.Equal(got, want) {
				return fmt.Errorf("a log has the entries %v; want %v", got, want)
			}
		}
		if got, want := sh.idleAtLocked(slot), k.IdleAt(); max(got, now) != max(want, now) {
			return fmt.Errorf("a key is idle at %d; want %d: %+v", got, want, k)
		}
		if got := slot.denied().hits(); got < m.denied[name] {
			return fmt.Errorf("a key denied for %d hits is remembered as denied for %d", m.denied[name], got)
		}
	}
	if got, want := m.s.Stats().Keys, len(m.keys); got != want {
		return fmt.Errorf("the store has %d keys; want %d", got, want)
	}
	return m.comparePlaces()
}

// alive returns the entries of a log that have not expired.
func alive(log *algorithms.Log, l algorithms.Limit, now algorithms.Instant) []algorithms.LogEntry {
	return slices.DeleteFunc(log.AppendEntries(nil), func(e algorithms.LogEntry) bool { return now.Sub(e.At) >= l.Period })
}

// comparePlaces returns an error unless the places of all keys are within the bound, and enough for
// their slots and entries.
func (m *forgetful) comparePlaces() error {
	least := 0
	for _, k := range m.keys {
		least++
		if n := k.Log().Len(); n > 0 {
			least += (logBytes + 16*n + placeBytes - 1) / placeBytes
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
				m := &forgetful{s: s, keys: model.Keys{}, denied: map[model.Name]uint64{}, logs: seed%2 == 1}
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
		for _, name := range m.gone() {
			if k := m.keys[name]; k.IdleAt() > m.s.now() {
				t.Fatalf("step %d: the sweep freed a key that is not idle: %+v", step, k)
			}
			m.drop(name)
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
		for i := range charges {
			delete(m.denied, model.NameOf(&charges[i]))
		}
		if want := m.keys.Reset(charges); err != nil || forgotten != want {
			t.Fatalf("step %d: Reset forgot %d, %v; want %d", step, forgotten, err, want)
		}
	case 1:
		got := make([]algorithms.Decision, 1)
		if err := m.s.Peek(t.Context(), charges[:1], got); err != nil {
			t.Fatal(err)
		}
		if want, _ := m.keys.Peek(&charges[0], m.s.now()); got[0] != want {
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
	var may, logs []model.Name // keys of the transaction that may have been forgotten for others of it; logs that may have joined hits
	for i := range charges {
		name := model.NameOf(&charges[i])
		k, ok := m.keys[name]
		if ok && len(charges) > 1 && st.Evicted > before.Evicted && !slices.Contains(may, name) && wait(k, m.denied[name], now) == 0 {
			may = append(may, name)
		}
		if ok && joined > 0 && k.Log().Len() > 0 && !slices.Contains(logs, name) {
			logs = append(logs, name)
		}
	}
	was := *m
	var mismatch error
	for subset := range 1 << (len(may) + len(logs)) {
		var forgotten, joins []model.Name
		for i, name := range slices.Concat(may, logs) {
			switch {
			case subset>>i&1 == 0:
			case i < len(may):
				forgotten = append(forgotten, name)
			default:
				joins = append(joins, name)
			}
		}
		if len(joins) != joined {
			continue
		}
		*m = was
		want := m.transaction(charges, now, forgotten, joins, full)
		for i, d := range want.Decisions {
			if full && d == (algorithms.Decision{}) && !got[i].Allowed && got[i].RetryAfter > 0 {
				want.Decisions[i] = got[i] // checkFull checks the wait
			}
		}
		if admitted != want.Admitted || !slices.Equal(got, want.Decisions) {
			mismatch = fmt.Errorf("decided as %v %+v; want %+v", admitted, got, want)
			continue
		}
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

// drop forgets a key.
func (m *forgetful) drop(name model.Name) {
	delete(m.keys, name)
	delete(m.denied, name)
}

// forget drops the keys that are gone after a transaction.
func (m *forgetful) forget(t *testing.T, was forgetful, now algorithms.Instant, evicted uint64) {
	t.Helper()
	for _, name := range m.gone() {
		k, ok := was.keys[name]
		if !ok {
			t.Fatalf("a new key is not remembered: %+v", m.keys[name])
		}
		if wait := wait(k, was.denied[name], now); wait > 0 {
			t.Fatalf("a key that is denied for %d hits for %v more was forgotten: %+v", max(was.denied[name], 1), wait, k)
		}
		m.drop(name)
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
	own, needs := model.NameOf(c), 1
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		needs += placesOf(16 * max(1, 2*m.keys[own].Log().Len())) // a log without room is full; its length is a power of two
	}
	if needs > int(m.s.maxKeys) {
		return
	}
	opens := time.Duration(never)
	for name, k := range m.keys {
		if name == own {
			continue
		}
		key := m.digest(name)
		sh := m.s.shardOf(key)
		place, _ := sh.table.find(key)
		wait := wait(k, sh.table.slots[place].denied().hits(), now)
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
