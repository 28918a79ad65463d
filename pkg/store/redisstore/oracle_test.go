package redisstore

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// oracle knows the holders from the answers alone. Clients of four stores begin, end, repeat and
// die in rounds, during which the clock stands still.
type oracle struct {
	stores []*Store
	clock  *clock
	keys   []*oracleKey
	ops    atomic.Int64
	failed atomic.Int64
}

type oracleKey struct {
	limit  algorithms.Limit
	charge store.Charge
	held   atomic.Int64 // hits, in the eyes of the clients: at no moment more than Redis knows of
}

type oracleHolder struct {
	key   *oracleKey
	name  string
	hits  int64
	until algorithms.Instant
	dead  bool // the client sends no end
}

const oracleAtMost = 10 * time.Second

func (o *oracle) charge(p algorithms.HoldPhase, h *oracleHolder) store.Charge {
	c := withHolder(p, string(h.key.charge.Key), h.key.limit, h.name, h.hits)
	c.Hold.AtMost = oracleAtMost
	return c
}

// ask asks one of the stores, and fails the test unless the holder was in that status.
func (o *oracle) ask(t *testing.T, r *rand.Rand, p algorithms.HoldPhase, h *oracleHolder, was algorithms.HoldStatus) bool {
	t.Helper()
	c := o.charge(p, h)
	o.ops.Add(1)
	admitted, err := store.Take(t.Context(), o.stores[r.IntN(len(o.stores))], []store.Charge{c}, make([]algorithms.Decision, 1))
	if err != nil || c.Hold.Was.Status != was {
		o.fail(t, "phase %d of %s: the holder was %+v, %v; want status %d", p, h.name, c.Hold.Was, err, was)
	}
	return admitted
}

func (o *oracle) fail(t *testing.T, format string, args ...any) {
	t.Helper()
	if o.failed.Add(1) <= 10 {
		t.Errorf(format, args...)
	}
}

// begin lets a new holder begin, and returns it if Redis admits it. A reply may be lost: then the
// client repeats the begin.
func (o *oracle) begin(t *testing.T, r *rand.Rand, name string) *oracleHolder {
	t.Helper()
	h := &oracleHolder{key: o.keys[r.IntN(len(o.keys))], name: name, hits: 1 + r.Int64N(3), until: o.clock.now().Add(oracleAtMost), dead: r.IntN(5) == 0}
	if !o.ask(t, r, algorithms.HoldBegin, h, algorithms.HoldUnknown) {
		return nil
	}
	if n := h.key.held.Add(h.hits); n > int64(h.key.limit.Requests) {
		o.fail(t, "%d of %d slots are held", n, h.key.limit.Requests)
	}
	for range r.IntN(3) / 2 {
		if !o.ask(t, r, algorithms.HoldBegin, h, algorithms.HoldHeld) {
			o.fail(t, "a repeat of %s is denied", name)
		}
	}
	return h
}

// end ends a holder, sometimes twice.
func (o *oracle) end(t *testing.T, r *rand.Rand, h *oracleHolder) {
	t.Helper()
	h.key.held.Add(-h.hits)
	o.ask(t, r, algorithms.HoldEnd, h, algorithms.HoldHeld)
	for range r.IntN(3) / 2 {
		o.ask(t, r, algorithms.HoldEnd, h, algorithms.HoldUnknown)
	}
}

// client does some operations of a round, and returns the holders that it has then.
func (o *oracle) client(t *testing.T, r *rand.Rand, name string, mine []*oracleHolder) []*oracleHolder {
	t.Helper()
	for n := range 40 {
		i := r.IntN(len(mine) + 1)
		switch {
		case i < len(mine) && !mine[i].dead && r.IntN(2) == 0:
			o.end(t, r, mine[i])
			mine[i] = mine[len(mine)-1]
			mine = mine[:len(mine)-1]
		case r.IntN(20) == 0: // an end without a begin
			o.ask(t, r, algorithms.HoldEnd, &oracleHolder{key: o.keys[0], name: fmt.Sprint(name, " ", n, " never began"), hits: 1}, algorithms.HoldUnknown)
		default:
			if h := o.begin(t, r, fmt.Sprint(name, " ", n)); h != nil {
				mine = append(mine, h)
			}
		}
	}
	return mine
}

// runOut forgets the holders whose time is over.
func (o *oracle) runOut(mine []*oracleHolder) (left []*oracleHolder) {
	for _, h := range mine {
		if h.until > o.clock.now() {
			left = append(left, h)
		} else {
			h.key.held.Add(-h.hits)
		}
	}
	return left
}

// compare fails the test unless Redis holds exactly the holders that the clients know of.
func (o *oracle) compare(t *testing.T) {
	t.Helper()
	for _, k := range o.keys {
		held, _, err := o.stores[0].Holders(t.Context(), &k.charge, 1e6)
		sum := int64(0)
		for _, h := range held {
			sum += int64(h.Hits)
		}
		left := int64(remains(t, o.stores[1], k.charge))
		if want := k.held.Load(); err != nil || sum != want || left != int64(k.limit.Requests)-want {
			o.fail(t, "%s: holders of %d hits, %d slots free, %v; want %d held of %d", k.charge.Key, sum, left, err, want, k.limit.Requests)
		}
	}
}

// WEIR_ORACLE is the number of begins and ends of a long run.
func TestHoldersOfFourSidecarsAreExact(t *testing.T) {
	most := int64(6000)
	if text := os.Getenv("WEIR_ORACLE"); text != "" {
		var err error
		if most, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatalf("WEIR_ORACLE: %v", err)
		}
	}
	first, clock := given(t, Options{})
	o := &oracle{stores: []*Store{first}, clock: clock}
	for range 3 {
		s := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: first.main.prefix})
		clock.drives(s)
		o.stores = append(o.stores, s)
	}
	for n, limit := range []uint32{1, 7, 50, 1000} {
		l := inFlight(limit)
		o.keys = append(o.keys, &oracleKey{limit: l, charge: begin(fmt.Sprint("k", n), l, "", 0)})
	}
	random := seeded(t)
	r := random()
	const clients = 16
	var mine [clients][]*oracleHolder
	var sources [clients]*rand.Rand
	for i := range sources {
		sources[i] = random()
	}
	for round := 0; o.ops.Load() < most && o.failed.Load() == 0; round++ {
		var busy sync.WaitGroup
		for i := range mine {
			busy.Go(func() { mine[i] = o.client(t, sources[i], fmt.Sprint(round, " ", i), mine[i]) })
		}
		busy.Wait()
		o.compare(t)
		pauses := []time.Duration{0, Granularity, time.Second, oracleAtMost / 3, oracleAtMost - Granularity, oracleAtMost}
		clock.sleep(pauses[r.IntN(len(pauses))])
		for i := range mine {
			mine[i] = o.runOut(mine[i])
		}
		o.compare(t)
	}
	clock.sleep(oracleAtMost)
	for i := range mine {
		mine[i] = o.runOut(mine[i])
	}
	o.compare(t)
	if names := namesLeft(t, first); len(names) > 0 {
		t.Errorf("keys %q are left after the time of all holders", names)
	}
	t.Logf("%d begins and ends, %d mistakes", o.ops.Load(), o.failed.Load())
}
