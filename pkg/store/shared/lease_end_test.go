package shared

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

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
		s.from = s.from.Add(untilEnd(time.Minute, s.from) - 300*time.Millisecond)
		l := s.hot(t, 0, 20)
		ends := 300*time.Millisecond - 300*time.Millisecond/drift - slack
		if l.first.left == 0 || l.first.ends != ends {
			t.Errorf("%v: got a grant of %d hits to %v, want the end at %v", a, l.first.left, l.first.ends, ends)
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

func TestADeniedOrFailedGrantIsNotAskedForAgainAtOnce(t *testing.T) {
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
			t.Errorf("a grant of a window without an answer: got %d hits to give back should they be charged, want %d", got, hits)
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

func TestABucketKeepsWhatAFailedGrantMayHaveCharged(t *testing.T) {
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
		t.Errorf("the grant under way: got %d hits to give back, want %d", back.hits, hits)
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
		s.grant(t, l, time.Second, 1)
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
