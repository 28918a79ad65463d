package shared

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// bucket has a burst of 1000 and gains 500 in a second, so that a lease lasts 100 ms.
var bucket = algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 500, Period: time.Second, Extra: algorithms.Extra{Burst: 1000}}

func window(requests uint32, period time.Duration) algorithms.Limit {
	return algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: requests, Period: period}
}

// shared is the state of one key in a store that answers at once.
type shared struct {
	limit algorithms.Limit
	state store.State
	from  algorithms.Instant // the store's instant at 0 of the holders' clocks
}

func (s *shared) instant(now time.Duration) algorithms.Instant { return s.from.Add(now) }

// take charges hits, and tells the state.
func (s *shared) take(now time.Duration, hits int64) (d algorithms.Decision, told store.State) {
	s.state.Now = s.instant(now)
	d = s.state.Take(s.limit, s.instant(now), hits, false)
	return d, s.state
}

// ask is an exact call by a lease's holder.
func (s *shared) ask(l *lease, now time.Duration, hits int64) algorithms.Decision {
	l.rate.note(now, hits)
	d, told := s.take(now, hits)
	l.learn(now, &told)
	return d
}

// hot returns a lease of a key that was asked n times at now, and which holds a part if it wants
// one.
func (s *shared) hot(t *testing.T, now time.Duration, n int) *lease {
	t.Helper()
	l := new(lease)
	l.use(s.limit)
	for range n {
		if d := s.ask(l, now, 1); !d.Allowed {
			t.Fatalf("the call before the lease: got %+v, want allowed", d)
		}
	}
	s.lease(t, l, now, 1)
	return l
}

// lease has the store answer a want at once, and returns the hits of the want.
func (s *shared) lease(t *testing.T, l *lease, now time.Duration, fleet int) int64 {
	t.Helper()
	hits := l.want(now, fleet)
	if hits == 0 {
		return 0
	}
	d, told := s.take(now, hits)
	if back := l.charged(now, now, d, &told); back.hits != 0 {
		t.Errorf("charged at %v: got %d hits to give back, want none", now, back.hits)
	}
	return hits
}

func start() algorithms.Instant { return algorithms.Instant(1_700_000_000 * time.Second) }

func TestAKeyThatIsAskedRarelyGetsNoLease(t *testing.T) {
	s := &shared{limit: window(100_000, time.Minute), from: start()}
	l := new(lease)
	l.use(s.limit)
	for i := range 100 {
		now := time.Duration(i) * slot / 2
		s.ask(l, now, 10)
		if got := l.want(now, 1); got != 0 {
			t.Fatalf("want at two calls in a slot: got %d, want 0", got)
		}
	}
	for range fewCalls {
		s.ask(l, 50*slot, 10)
	}
	if got := l.want(50*slot, 1); got == 0 {
		t.Error("want after four calls in a slot: got 0, want hits")
	}
}

func TestAPartSufficesForASlotAndIsAFairPartOfTheRest(t *testing.T) {
	for _, c := range []struct {
		name       string
		requests   uint32
		hits       int64 // of each of 20 calls
		fleet      int
		want, left int64
	}{
		{"as many hits as in the slot", 10_000, 1, 1, 20, 9960},
		{"of larger calls", 10_000, 10, 1, 200, 9600},
		{"half of the rest", 40, 1, 1, 10, 10},
		{"an eighth of the rest for a fleet of four", 100, 1, 4, 10, 70},
		{"nothing of less than four for one", 23, 1, 1, 0, 3},
		{"nothing of less than sixteen for four", 35, 1, 4, 0, 15},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &shared{limit: window(c.requests, time.Minute), from: start()}
			l := new(lease)
			l.use(s.limit)
			for range 20 {
				s.ask(l, 0, c.hits)
			}
			if got := s.lease(t, l, 0, c.fleet); got != c.want {
				t.Errorf("got a want of %d, want %d", got, c.want)
			}
			if got := l.held(time.Microsecond); got != c.want {
				t.Errorf("got %d hits held, want %d", got, c.want)
			}
			if d, _ := s.take(0, 0); int64(d.Remaining) != c.left {
				t.Errorf("the store has %d left, want %d", d.Remaining, c.left)
			}
		})
	}
}

func TestABucketIsParkedBeforeItsHitsAreLeased(t *testing.T) {
	for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.TokenBucketInteger} {
		s := &shared{limit: algorithms.Limit{Algorithm: a, Requests: 1000, Period: 2 * time.Second}, from: start()}
		l := s.hot(t, 0, 20)
		if b := boundsOf(s.limit); b.length != 100*time.Millisecond || b.park != 52 {
			t.Errorf("%v: got the bounds %+v, want 100 ms and a park of 52", a, b)
		}
		d, _ := s.take(0, 0)
		if deficit := 1000 - int64(d.Remaining); deficit < 52+l.held(0) {
			t.Errorf("%v: the bucket lacks %d hits with %d leased, want at least 52 more", a, deficit, l.held(0))
		}
		if held := l.held(0); held < 6 || held > 12 {
			t.Errorf("%v: got %d hits held, want 6 to 12, for a third of the lease", a, held)
		}
	}
}

func TestAPartThatFindsTheBucketFullerThanToldIsNotSpent(t *testing.T) {
	s := &shared{limit: bucket, from: start()}
	l := new(lease)
	l.use(bucket)
	for range 20 {
		s.ask(l, 0, 20)
	}
	hits := l.want(0, 1)
	s.state = store.State{} // a reset
	d, told := s.take(0, hits)
	if back := l.charged(0, 0, d, &told); back.hits != 0 {
		t.Errorf("got %d hits to give back, want none", back.hits)
	}
	if got, most := l.held(0), hits-boundsOf(bucket).park; got > most {
		t.Errorf("got %d hits held of %d in a full bucket, want %d at most", got, hits, most)
	}
}

func TestTheNextPartComesBeforeTheFirstIsSpent(t *testing.T) {
	s := &shared{limit: window(100_000, time.Minute), from: start()}
	l := s.hot(t, 0, 40)
	for i := range 400 {
		now := time.Duration(i) * slot / 40
		l.rate.note(now, 1)
		if _, spent := l.spend(now, 1); !spent {
			t.Fatalf("call %d: got nothing, want a hit", i)
		}
		s.lease(t, l, now, 1)
	}
	if d, _ := s.take(10*slot, 0); d.Remaining+440+uint64(l.held(10*slot)) != 100_000 {
		t.Errorf("got %d left in the store and %d held after 440 hits, want 100 000 together", d.Remaining, l.held(10*slot))
	}
}

func TestACallCanSpendOfTwoPartsAndPutBack(t *testing.T) {
	s := &shared{limit: window(1000, time.Minute), from: start()}
	l := s.hot(t, 0, 20)
	l.spend(time.Millisecond, 15)
	s.lease(t, l, time.Millisecond, 1)
	from, spent := l.spend(2*time.Millisecond, 10)
	if !spent || from[0].hits != 5 || from[1].hits != 5 || l.held(2*time.Millisecond) != 15 {
		t.Fatalf("got %+v, %v and %d held, want 5 of each", from, spent, l.held(2*time.Millisecond))
	}
	if l.unspend(3*time.Millisecond, from[0]) {
		t.Error("the first part is gone, but took back its hits")
	}
	if !l.unspend(3*time.Millisecond, from[1]) || l.held(3*time.Millisecond) != 20 {
		t.Errorf("the second part has %d hits, want 20 again", l.held(3*time.Millisecond))
	}
	if l.unspend(3*time.Millisecond, from[1]) {
		t.Error("a part took back more than it had")
	}
	if l.unspend(2*time.Second, taken{1, from[1].at}) {
		t.Error("a part took back a hit after its end")
	}
}

func TestAnswersAreTheToldStateLessTheHitsSpentHere(t *testing.T) {
	for _, limit := range []algorithms.Limit{window(1000, time.Minute), {Algorithm: algorithms.SlidingWindowCounter, Requests: 1000, Period: time.Minute}} {
		s := &shared{limit: limit, from: start()}
		alone := &shared{limit: limit, from: start()}
		l := s.hot(t, 0, 20)
		alone.take(0, 20)
		for i := range 5 {
			now := time.Duration(i+1) * time.Millisecond
			l.spend(now, 2)
			want, _ := alone.take(now, 2)
			if got := l.peek(now, 0); got != want {
				t.Errorf("%v, call %d: got %+v, want %+v as without a lease", limit.Algorithm, i, got, want)
			}
		}
	}
}

func TestTheseLimitsAreNeverLeased(t *testing.T) {
	for name, limit := range map[string]algorithms.Limit{
		"a log":                         {Algorithm: algorithms.SlidingWindowLog, Requests: 1000, Period: time.Minute},
		"a ban":                         {Algorithm: algorithms.FixedWindow, Period: time.Minute},
		"a window of 99 ms":             window(1000, 99*time.Millisecond),
		"a bucket that fills in 199 ms": {Algorithm: algorithms.TokenBucket, Requests: 1000, Period: time.Second, Extra: algorithms.Extra{Burst: 199}},
	} {
		if b := boundsOf(limit); b.length != 0 {
			t.Errorf("%s: got leases of %v, want none", name, b.length)
		}
	}
	for name, limit := range map[string]algorithms.Limit{
		"a window of 100 ms":            window(1000, 100*time.Millisecond),
		"a bucket that fills in 200 ms": {Algorithm: algorithms.TokenBucket, Requests: 1000, Period: time.Second, Extra: algorithms.Extra{Burst: 200}},
		"the largest bucket":            {Algorithm: algorithms.TokenBucket, Requests: 1, Period: algorithms.MaxPeriod, Extra: algorithms.Extra{Burst: algorithms.MaxHits}},
	} {
		if b := boundsOf(limit); b.length < shortest || b.length > longest || b.park < 0 {
			t.Errorf("%s: got the bounds %+v, want a lease of %v to %v", name, b, shortest, longest)
		}
	}
}

func BenchmarkSpend(b *testing.B) {
	s := &shared{limit: window(1_000_000, time.Minute), from: start()}
	l := new(lease)
	l.use(s.limit)
	_, told := s.take(0, 1)
	l.learn(0, &told)
	b.ReportAllocs()
	for i := range b.N {
		now := time.Duration(i) * time.Microsecond
		l.rate.note(now, 1)
		if l.held(now) == 0 {
			l.first = part{left: 1 << 30, size: 1 << 30, ends: now + time.Second, half: now + time.Second}
		}
		l.spend(now, 1)
		l.want(now, 1)
		_ = l.peek(now, 0)
	}
}

func TestALeaseMakesUpForSlowParts(t *testing.T) {
	for trip, want := range map[time.Duration]int64{0: 20, 50 * time.Millisecond: 40, 200 * time.Millisecond: 100, time.Second: 100} {
		s := &shared{limit: window(10_000, time.Minute), from: start()}
		l := &lease{trip: trip}
		l.use(s.limit)
		for range 20 {
			s.ask(l, 0, 1)
		}
		if got := l.want(0, 1); got != want {
			t.Errorf("20 hits in a slot and a round trip of %v: got a want of %d, want %d", trip, got, want)
		}
	}
}

// The answers of one call have one instant, and their requests wake in any order.
func TestOfTwoAnswersOfOneInstantTheOneThatLeavesLessCounts(t *testing.T) {
	for _, limit := range []algorithms.Limit{bucket, window(1000, time.Minute)} {
		s := &shared{limit: limit, from: algorithms.Instant(1_700_000_000 * time.Second)}
		_, first := s.take(0, 100)
		_, second := s.take(0, 10)
		for _, told := range [][]store.State{{first, second}, {second, first}} {
			l := new(lease)
			l.use(limit)
			for i := range told {
				l.learn(0, &told[i])
			}
			if d := l.peek(0, 0); d.Remaining != 890 {
				t.Errorf("%v: got %d left, want 890", limit.Algorithm, d.Remaining)
			}
		}
	}
}

func TestALeaseEndsByTheHoldersClockFromBeforeTheQuestion(t *testing.T) {
	s := &shared{limit: window(1000, time.Minute), from: start()}
	l := new(lease)
	l.use(s.limit)
	for range 20 {
		s.ask(l, 0, 1)
	}
	hits := l.want(0, 1)
	d, told := s.take(3*time.Millisecond, hits)
	l.charged(0, 7*time.Millisecond, d, &told)
	ends := longest - longest/drift - slack
	if _, spent := l.spend(ends-1, 1); !spent {
		t.Error("spend just before the end: got nothing, want a hit")
	}
	if _, spent := l.spend(ends, 1); spent {
		t.Error("spend at the end: got a hit, want nothing")
	}
	if back := l.ended(ends - 1); back[0].hits != 0 {
		t.Errorf("just before the end: got %d hits to give back, want none", back[0].hits)
	}
	if back := l.ended(ends); back[0] != (taken{hits - 1, told.Now}) || back[1].hits != 0 {
		t.Errorf("at the end: got %+v to give back, want the %d hits left", back, hits-1)
	}
	if back := l.ended(ends); back != [2]taken{} {
		t.Errorf("after the end: got %+v to give back again, want nothing", back)
	}
}

func TestALeaseEndsWithItsWindow(t *testing.T) {
	for _, a := range []algorithms.Algorithm{algorithms.FixedWindow, algorithms.SlidingWindowCounter} {
		s := &shared{limit: algorithms.Limit{Algorithm: a, Requests: 1000, Period: time.Minute}, from: start()}
		s.from = s.from.Add(untilEnd(algorithms.Limit{Period: time.Minute}, s.from) - 300*time.Millisecond)
		l := s.hot(t, 0, 20)
		ends := 300*time.Millisecond - 300*time.Millisecond/drift - slack
		if l.first.left == 0 || l.first.ends != ends {
			t.Errorf("%v: got a part of %d hits to %v, want the end at %v", a, l.first.left, l.first.ends, ends)
		}
	}
}

func TestAnAnswerThatCameTooLateIsGivenBack(t *testing.T) {
	s := &shared{limit: bucket, from: start()}
	l := new(lease)
	l.use(bucket)
	for range 20 {
		s.ask(l, 0, 10)
	}
	hits := l.want(0, 1)
	d, told := s.take(0, hits)
	if back := l.charged(0, 100*time.Millisecond, d, &told); back.hits != hits || l.held(100*time.Millisecond) != 0 {
		t.Errorf("got %+v to give back and %d held, want all %d back", back, l.held(100*time.Millisecond), hits)
	}
}

func TestADeniedOrFailedPartIsNotAskedForAgainAtOnce(t *testing.T) {
	s := &shared{limit: window(1000, time.Minute), from: start()}
	for _, denied := range []bool{true, false} {
		l := new(lease)
		l.use(s.limit)
		for range 20 {
			s.ask(l, 0, 1)
		}
		hits := l.want(0, 1)
		if got := l.want(0, 1); got != 0 {
			t.Errorf("a second want while the first is under way: got %d, want 0", got)
		}
		if denied {
			l.charged(0, 0, algorithms.Decision{}, &store.State{Now: start(), Limit: s.limit})
		} else if got := l.failed(0); got != hits {
			t.Errorf("a part of a window without an answer: got %d hits to give back should they be charged, want %d", got, hits)
		}
		l.rate.note(pause-1, 100)
		if got := l.want(pause-1, 1); got != 0 {
			t.Errorf("want in the pause: got %d, want 0", got)
		}
		for range fewCalls {
			l.rate.note(pause, 1)
		}
		if got := l.want(pause, 1); got == 0 {
			t.Error("want after the pause: got 0, want hits")
		}
	}
}

func TestABucketKeepsWhatAFailedPartMayHaveCharged(t *testing.T) {
	s := &shared{limit: bucket, from: start()}
	l := new(lease)
	l.use(bucket)
	for range 20 {
		s.ask(l, 0, 1)
	}
	if l.want(0, 1) == 0 {
		t.Fatal("want: got 0, want hits")
	}
	if got := l.failed(0); got != 0 {
		t.Errorf("got %d hits to give back, want none", got)
	}
}

func TestALeaseThatIsRecalledGivesEverythingBack(t *testing.T) {
	s := &shared{limit: window(1000, time.Minute), from: start()}
	l := s.hot(t, 0, 20)
	l.spend(0, 12)
	hits := l.want(0, 1)
	if back := l.recall(); back[0].hits != 8 {
		t.Errorf("got %+v to give back, want 8 hits", back)
	}
	d, told := s.take(0, hits)
	if back := l.charged(0, 0, d, &told); back.hits != hits {
		t.Errorf("the part under way: got %d hits to give back, want %d", back.hits, hits)
	}
	if got := l.held(0); got != 0 {
		t.Errorf("got %d hits held, want 0", got)
	}
}

func TestALeaseOfAResetKeyGivesNothingBack(t *testing.T) {
	s := &shared{limit: window(1000, time.Minute), from: start()}
	l := s.hot(t, 0, 20)
	l.spend(0, 12)
	hits := l.want(0, 1)
	l.drop()
	d, told := s.take(0, hits)
	if back := l.charged(0, 0, d, &told); back.hits != 0 || l.held(0) != 0 || l.ended(time.Hour) != [2]taken{} {
		t.Errorf("got %+v to give back and %d held, want nothing", back, l.held(0))
	}
}

func TestAnotherLimitRecallsTheLease(t *testing.T) {
	s := &shared{limit: window(1000, time.Minute), from: start()}
	l := s.hot(t, 0, 20)
	hits := l.held(0)
	if back := l.use(window(900, time.Minute)); back[0].hits != hits || l.held(0) != 0 {
		t.Errorf("got %+v to give back and %d held, want the %d hits back", back, l.held(0), hits)
	}
	if back := l.use(window(900, time.Minute)); back != [2]taken{} {
		t.Errorf("the same limit again: got %+v to give back, want nothing", back)
	}
}

// After the clock of the store has gone back, a lease goes on from the next state that the store
// tells.
func TestALeaseFollowsAClockThatGoesBack(t *testing.T) {
	for _, step := range []time.Duration{2 * time.Second, time.Hour} {
		s := &shared{limit: window(1000, 24*time.Hour), from: start()}
		l := s.hot(t, 0, 20)
		s.from -= algorithms.Instant(step)
		s.state.State = algorithms.Realign(s.limit, s.state.State, start(), -step)
		l.release()
		var d algorithms.Decision
		for range 20 {
			d = s.ask(l, time.Second, 20)
		}
		s.lease(t, l, time.Second, 1)
		if got := l.peek(time.Second, 0); l.held(time.Second) == 0 || got.Remaining != d.Remaining {
			t.Errorf("%v back: got %d left from a lease of %d hits, want %d as the store told", step, got.Remaining, l.held(time.Second), d.Remaining)
		}
	}
}

// A caller reads the clock before it waits for a lock, so another one may have heard the store at a
// later instant.
func TestAnInstantBeforeTheLastAnswerIsThatOfTheAnswer(t *testing.T) {
	s := &shared{limit: window(1000, time.Minute), from: start()}
	l := s.hot(t, time.Millisecond, 20)
	want := l.peek(time.Millisecond, 0)
	if got := l.peek(time.Millisecond-1, 0); got != want {
		t.Errorf("got %+v a nanosecond before the answer, want %+v", got, want)
	}
}

func TestALeaseThatNobodySpendsGoesBackAfterASlot(t *testing.T) {
	s := &shared{limit: window(1000, time.Minute), from: start()}
	l := s.hot(t, slot/2, 20)
	held := l.held(slot)
	if held == 0 {
		t.Fatal("got no lease")
	}
	if back := l.unused(2*slot - 1); back != [2]taken{} {
		t.Errorf("within a slot: got %+v to give back, want nothing", back)
	}
	if back := l.unused(2 * slot); back[0].hits != held || l.held(2*slot) != 0 {
		t.Errorf("after a slot: got %+v to give back and %d held, want all %d hits back", back, l.held(2*slot), held)
	}
	if back := l.unused(3 * slot); back != [2]taken{} {
		t.Errorf("got %+v to give back again, want nothing", back)
	}
}
