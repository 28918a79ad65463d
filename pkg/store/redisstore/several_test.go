package redisstore

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// clustered returns a store on the shared cluster.
func clustered(tb testing.TB, o Options) *Store {
	tb.Helper()
	return open(tb, urlOf("redis-cluster", sharedCluster(tb).Addresses()...), o)
}

// seeded returns a function that makes random sources, which goroutines may call. A test that fails
// prints the seed; WEIR_TEST_SEED sets the seed of a run. The order of the goroutines stays random.
func seeded(t *testing.T) func() *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("WEIR_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("WEIR_TEST_SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again with WEIR_TEST_SEED=%d", seed)
		}
	})
	var made atomic.Uint64
	return func() *rand.Rand { return newRand(seed + made.Add(1)) }
}

// Concurrent requests take from two of five keys each, and some from a third that denies half of
// them. Admitted and remaining hits together are the limit. So each denied request gave back
// exactly its reservations.
func TestCrossingRequestsOverSlotsAdmitExactlyTheLimit(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		s := clustered(t, Options{})
		const keys, limit = 5, 400
		gate := hit("gate", perAge(a, 200))
		var admitted [keys]atomic.Int64
		random := seeded(t)
		storm(16, 60, func(n int) {
			r := random()
			charges := []store.Charge{gate}
			var taken []int
			for i := range 2 {
				k := (n + i*(1+r.IntN(keys-1))) % keys
				taken = append(taken, k)
				c := hit(fmt.Sprint("key ", k), perAge(a, limit))
				c.Rule, c.Hits = i+1, 1+r.Int64N(3)
				charges = append(charges, c)
			}
			if r.IntN(3) > 0 {
				charges = charges[1:]
			}
			if ok, _ := ask(t, s, charges...); ok {
				for i, k := range taken {
					admitted[k].Add(charges[len(charges)-2+i].Hits)
				}
			}
		})
		for k := range keys {
			left := remains(t, s, hit(fmt.Sprint("key ", k), perAge(a, limit)))
			if got := admitted[k].Load(); got+int64(left) != limit {
				t.Errorf("%v: key %d: %d admitted and %d left; want %d together", a, k, got, left, limit)
			}
		}
		if stats := s.Stats(); stats.LostHits != 0 {
			t.Errorf("%v: %+v", a, stats)
		}
	}
}

// The verdicts on many reservations come late and in any order. A model takes only the admitted
// requests, at the instants of their reservations. Redis never has more room than the model.
func TestReservationsThatAreGivenBackNeverLeaveMoreRoom(t *testing.T) {
	rounds := race.Scale(300)
	s, clock := given(t, Options{})
	for seed := range rounds {
		r := newRand(uint64(seed))
		a := algorithms.RateAlgorithms()[seed%len(algorithms.RateAlgorithms())]
		l := algorithms.Limit{Algorithm: a, Requests: uint32(5 + r.IntN(50)), Period: time.Duration(1+r.IntN(1000)) * 10 * time.Millisecond}
		if a == algorithms.TokenBucket && r.IntN(2) == 0 {
			l.Burst = uint32(1 + r.IntN(100))
		}
		clock.at.Store(newClock().at.Load() + int64(r.IntN(int(l.Period)))/1000*1000)
		key := fmt.Sprint("k ", seed)
		type reserved struct {
			call     *transaction
			admitted bool
		}
		type taken struct {
			at     algorithms.Instant
			charge store.Charge
		}
		var open []reserved
		var kept []taken // in the order of their instants
		story := ""
		settle := func(i int) {
			x := open[i]
			open = append(open[:i], open[i+1:]...)
			story += fmt.Sprintf("%d settle %d: %v\n", clock.at.Load(), x.call.charges[0].Hits, x.admitted)
			v := isDenied
			if x.admitted {
				v = isAdmitted
			}
			if change := s.settle(x.call, v); change != nil {
				run(t, s, change)
			}
		}
		for range 30 {
			switch {
			case len(open) > 0 && r.IntN(2) == 0:
				settle(r.IntN(len(open)))
			case r.IntN(3) == 0:
				clock.sleep(time.Duration(r.Int64N(int64(l.Period)/8 + 1)))
			default:
				c := hit(key, l)
				c.Hits = 1 + r.Int64N(int64(l.Capacity())/2+1)
				x := reserved{call: callOf(reserve, c)}
				run(t, s, x.call)
				x.admitted = x.call.admitted && r.IntN(2) == 0
				story += fmt.Sprintf("%d reserve %d: %v %+v, will be %v\n", clock.at.Load(), c.Hits, x.call.admitted, x.call.decisions[0], x.admitted)
				if x.admitted {
					kept = append(kept, taken{clock.now(), c})
				}
				open = append(open, x)
			}
		}
		for len(open) > 0 {
			settle(len(open) - 1)
		}
		m := model.Keys{}
		for _, k := range kept {
			if want := m.Take([]store.Charge{k.charge}, k.at); !want.Admitted {
				t.Fatalf("seed %d, %+v: %d hits at %d were admitted over the limit: %+v\n%s", seed, l, k.charge.Hits, k.at, want.Decisions, story)
			}
		}
		for range 3 {
			probe := store.Charge{Key: []byte(key), Limit: l}
			d, _ := m.Peek(&probe, clock.now())
			want, got := uint32(d.Remaining), remains(t, s, probe)
			exact := a == algorithms.FixedWindow || a == algorithms.SlidingWindowLog || a == algorithms.SlidingWindowCounter
			if got > want || exact && got != want {
				t.Fatalf("seed %d, %+v: %d remain; want %d\n%s", seed, l, got, want, story)
			}
			clock.sleep(l.Period / 3)
		}
	}
}

// Hits that a denied request reserved in a log can be given back after they have expired.
func TestReservationInALogIsGivenBackLate(t *testing.T) {
	for _, counted := range []bool{false, true} {
		s, clock := given(t, Options{})
		l := algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: 10, Period: time.Second}
		c := hit("k", l)
		c.Hits, c.CountRejected = 3, counted
		reserved := callOf(reserve, c)
		run(t, s, reserved)
		clock.sleep(l.Period / 2)
		plain := hit("k", l)
		plain.Hits = 4
		wants(t, true, s, plain)
		clock.sleep(l.Period / 2)
		change := s.settle(reserved, isDenied)
		if change == nil {
			t.Fatal("nothing is set right")
		}
		run(t, s, change)
		want := uint32(6)
		if counted {
			want = 3
		}
		if got := remains(t, s, plain); got > want {
			t.Errorf("counted %v: %d remain; want %d", counted, got, want)
		}
		if err := holdsLog(t, s, s.name(&c), l, clock.now().Add(map[bool]time.Duration{false: l.Period / 2, true: l.Period}[counted])); err != nil {
			t.Errorf("counted %v: %v", counted, err)
		}
	}
}

// A clock that goes back holds a log at its last instant. Hits reserved meanwhile are given back
// all the same.
func TestReservationIsGivenBackWhenTheClockWentBack(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		s, clock := given(t, Options{})
		clock.sleep(30 * time.Minute)
		c := hit("k", algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Hour})
		wants(t, true, s, c)
		clock.at.Add(-int64(5 * time.Millisecond))
		reserved := callOf(reserve, c)
		run(t, s, reserved)
		other := hit("k", c.Limit) // so that the state is another since
		wants(t, true, s, other)
		if change := s.settle(reserved, isDenied); change != nil {
			run(t, s, change)
		}
		if got := remains(t, s, c); got != 8 {
			t.Errorf("%v: %d remain; want 8", a, got)
		}
	}
}

func TestRefundsOverSlotsWaitForTheVerdict(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		s := clustered(t, Options{})
		used, banned, free := hit("used", perAge(a, 10)), hit("banned", perAge(a, 0)), hit("free", perAge(a, 10))
		used.Hits = 6
		wants(t, true, s, used)
		refund := used
		refund.Hits = -4
		wants(t, false, s, refund, banned, free)
		if got := remains(t, s, used); got != 4 {
			t.Errorf("%v: %d remain after a refund that was denied; want 4", a, got)
		}
		wants(t, true, s, refund, free)
		if got := remains(t, s, used); got != 8 {
			t.Errorf("%v: %d remain after a refund; want 8", a, got)
		}
		if got := remains(t, s, free); got != 9 {
			t.Errorf("%v: %d remain beside a refund; want 9", a, got)
		}
	}
}

// An answer that has come is not late, however late the caller looks.
func TestCallThatHasEndedIsNotLate(t *testing.T) {
	s, _ := given(t, Options{})
	for range 200 {
		c := callOf(take)
		w := c.wait
		c.ctx = t.Context()
		w.add(c, time.Now(), time.Now().Add(-time.Second))
		c.end()
		s.await(w, func([]*transaction) {})
		if err := c.outcome(); err != nil {
			t.Fatal(err)
		}
	}
}

// Another store decides a request that fails, with all its hits.
func TestWhatARequestThatFailedHasCountedIsGivenBack(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		for _, hits := range []int64{2, 12} { // allowed, and denied
			s, _ := given(t, Options{})
			c := hit("k", perAge(a, 10))
			c.Hits, c.CountRejected = hits, true
			reserved := callOf(reserve, c)
			run(t, s, reserved)
			other := hit("k", c.Limit)
			other.Hits = -1 // so that the state is another since
			wants(t, true, s, other)
			s.giveBack([]*transaction{reserved})
			eventually(t, fmt.Sprintf("10 of 10 of %v remain after %d hits of a request that failed", a, hits), func() bool {
				return remains(t, s, c) == 10
			})
		}
	}
}

// onNode returns a charge whose key lies on the primary of the first, or second, third of the
// slots.
func onNode(s *Store, third int, l algorithms.Limit) store.Charge {
	for n := 0; ; n++ {
		c := hit(fmt.Sprint("n", n), l)
		if int(s.locate(&c, 0).slot)*3/slots == third {
			return c
		}
	}
}

func TestWhatOthersReservedIsGivenBackWhenANodeDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := awayCluster(t, time.Millisecond, layouts()["thirds"])
		l := perAge(algorithms.FixedWindow, 100)
		one, two := onNode(s, 0, l), onNode(s, 1, l)
		one.Hits, two.Rule = 5, 1
		decisions := make([]algorithms.Decision, 2)
		if _, err := store.Take(t.Context(), s, []store.Charge{one, two}, decisions); err != nil {
			t.Fatal(err)
		}
		c.fars[1].hang(time.Minute)
		const requests = 6
		for n := range requests {
			charges := []store.Charge{one, two}
			if n%2 == 1 {
				charges[0], charges[1] = two, one
			}
			if _, err := store.Take(t.Context(), s, charges, decisions); err == nil {
				t.Error("a node that stands still answered")
			}
		}
		time.Sleep(time.Second)
		if sum := c.fars[0].told.Load(); sum != -5*requests {
			t.Errorf("the node that answered was given back %d hits, want %d", -sum, 5*requests)
		}
		if stats := s.Stats(); stats.LostHits != 0 { // all hits that are not given back stay charged
			t.Errorf("%+v", stats)
		}
	})
}
