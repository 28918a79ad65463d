package shared

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestAwaitEndsWithTheFirstProbe(t *testing.T) {
	for _, answer := range []error{nil, errDown} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, setup{Probe: func(context.Context) error { time.Sleep(time.Second); return answer }})
			early, cancel := context.WithTimeout(t.Context(), time.Second-1)
			defer cancel()
			if err := r.Await(early); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("before the probe has ended: %v", err)
			}
			start := time.Now()
			if err := r.Await(t.Context()); err != nil || time.Since(start) != 1 {
				t.Errorf("%v, %v after the probe; want no error and no wait", err, time.Since(start)-1)
			}
			r.want(map[bool]State{true: Closed, false: Open}[answer == nil])
		})
	}
}

func TestTheFirstProbeDecidesAndNoRequestWaitsForIt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer error
		want   State
		opened uint64
		lines  []string
	}{
		{"well", nil, Closed, 0, []string{`level=INFO msg="store answers, its counts rule"`}},
		{"away", errDown, Open, 1, []string{
			`level=WARN msg="store is away, limits go by their on_store_error" error="connection refused"`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				r := newRig(t, setup{Probe: func(context.Context) error { <-gate; return tt.answer }})
				synctest.Wait()
				r.want(Open)
				if r.hit() {
					t.Error("a request asked the primary before the first probe had")
				}
				if err := r.Ready(); err == nil {
					t.Error("Ready = nil before the first probe")
				}
				close(gate)
				synctest.Wait()
				r.want(tt.want)
				if got := r.hit(); got != (tt.want == Closed) {
					t.Errorf("the primary was asked: %v", got)
				}
				if got := r.Stats().Opened; got != tt.opened {
					t.Errorf("opened %d times; want %d", got, tt.opened)
				}
				must.Match(t, "log", tt.lines, r.log.Lines())
			})
		})
	}
}

func TestItOpensAfterFailuresWithoutASuccessInBetween(t *testing.T) {
	for _, failures := range []int{0, 1, 3} {
		inBubble(t, setup{Failures: failures}, func(r *rig) {
			t := r.t
			if failures == 0 {
				failures = defaultFailures
			}
			for range 3 { // a success starts the count anew
				r.primary.fail(errDown)
				for range failures - 1 {
					r.hit()
				}
				r.primary.fail(nil)
				r.hit()
			}
			r.want(Closed)
			r.primary.fail(errDown)
			for range failures - 1 {
				r.hit()
				r.want(Closed)
			}
			r.hit()
			r.want(Open)
			asked := r.primary.asked.Load()
			for range 100 {
				r.hit()
			}
			if got := r.primary.asked.Load(); got != asked {
				t.Errorf("the open breaker let %d requests through", got-asked)
			}
		})
	}
}

func TestAnOpenBreakerProbesAtIntervalsThatDoubleUpToTheBound(t *testing.T) {
	o := setup{MinOpen: 100 * time.Millisecond, MaxOpen: time.Second}
	inBubbleAway(t, o, func(r *rig) {
		t := r.t
		for round := range 2 {
			for i, ms := range []time.Duration{100, 200, 400, 800, 1000, 1000, 1000} {
				interval, start, probes := ms*time.Millisecond, time.Now(), r.probes.Load()
				for r.probes.Load() == probes {
					time.Sleep(time.Millisecond)
					synctest.Wait()
					r.want(Open)
				}
				waited := time.Since(start)
				if waited < interval*3/4 || waited > interval+time.Millisecond {
					t.Errorf("round %d, probe %d came after %v; want three quarters of %v to all of it", round, i, waited, interval)
				}
			}
			// Once it has closed the first interval is the short one again.
			r.probeAnswers(nil)
			r.primary.fail(nil)
			time.Sleep(time.Second)
			synctest.Wait()
			for range successesToClose {
				r.hit()
			}
			r.want(Closed)
			r.probeAnswers(errDown)
			r.primary.fail(errDown)
			for range defaultFailures {
				r.hit()
			}
		}
	})
}

// halfOpen makes the breaker of a rig that is away half-open, with a primary that is well.
func (r *rig) halfOpen() {
	r.t.Helper()
	r.probeAnswers(nil)
	r.primary.fail(nil)
	for r.State() == Open {
		time.Sleep(time.Millisecond)
		synctest.Wait()
	}
	r.want(HalfOpen)
}

func TestHalfOpenLetsExactlyOneRequestThrough(t *testing.T) {
	inBubbleAway(t, setup{MinOpen: time.Second}, func(r *rig) {
		t := r.t
		r.halfOpen()
		for turn := range successesToClose {
			r.want(HalfOpen)
			gate := make(chan struct{})
			r.primary.follow(func(context.Context) error { <-gate; return nil })
			asked := r.primary.asked.Load()
			var all sync.WaitGroup
			var through atomic.Int64
			for range 64 {
				all.Go(func() {
					if r.hit() {
						through.Add(1)
					}
				})
			}
			synctest.Wait()
			if got := r.primary.asked.Load() - asked; got != 1 {
				t.Fatalf("turn %d: %d requests at the primary; want 1", turn, got)
			}
			close(gate)
			all.Wait()
			if got := through.Load(); got != 1 {
				t.Errorf("turn %d: the primary decided %d requests; want 1", turn, got)
			}
		}
		r.want(Closed)
	})
}

func TestHalfOpenClosesAfterSuccessesAndOpensForLongerAfterAFailure(t *testing.T) {
	inBubbleAway(t, setup{}, func(r *rig) {
		t := r.t
		r.halfOpen()
		for range successesToClose - 1 {
			if !r.hit() {
				t.Fatal("half-open: a request alone did not reach the primary")
			}
			r.want(HalfOpen)
		}
		r.primary.fail(errDown)
		r.hit()
		r.want(Open)
		start := time.Now()
		r.halfOpen()
		if waited := time.Since(start); waited < 150*time.Millisecond || waited > 201*time.Millisecond {
			t.Errorf("it was open for %v after the failure; want 150 to 200 ms", waited)
		}
		for range successesToClose {
			r.want(HalfOpen) // the successes of the time before do not count
			r.hit()
		}
		r.want(Closed)
		if got := r.Stats().Opened; got != 2 {
			t.Errorf("opened %d times; want 2", got)
		}
	})
}

func TestHalfOpenWithoutRequestsGoesByOneProbeMore(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer error
		want   State
	}{{"well", nil, Closed}, {"away", errDown, Open}} {
		t.Run(tt.name, func(t *testing.T) {
			inBubbleAway(t, setup{}, func(r *rig) {
				r.halfOpen()
				r.probeAnswers(tt.answer)
				time.Sleep(defaultMinOpen - time.Millisecond)
				r.hit() // as a request comes it waits once more
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				r.want(HalfOpen)
				time.Sleep(defaultMinOpen)
				synctest.Wait()
				r.want(tt.want)
			})
		})
	}
}

func TestLateResultsOfAnEarlierPhaseCountForNothing(t *testing.T) {
	late := func(r *rig, result error) (finish func()) { // begins a request that ends at finish
		gate, done := make(chan struct{}), make(chan struct{})
		r.primary.follow(func(context.Context) error { <-gate; return result })
		go func() { defer close(done); r.hit() }()
		synctest.Wait()
		return func() { close(gate); <-done }
	}
	t.Run("of_closed", func(t *testing.T) {
		inBubble(t, setup{Failures: 1}, func(r *rig) {
			t := r.t
			failure, success := late(r, errDown), late(r, nil)
			failureWhenClosed := late(r, errDown)
			r.primary.fail(errDown)
			r.hit()
			r.want(Open)
			r.halfOpen()
			r.hit()
			r.hit()
			failure()
			r.want(HalfOpen)
			success()
			r.want(HalfOpen)
			r.hit()
			r.want(Closed)
			failureWhenClosed()
			r.want(Closed)
			if got := r.Stats(); got.Failures.Other != 3 || got.Opened != 1 {
				t.Errorf("stats = %+v; want the late failures counted, and opened once", got)
			}
		})
	})
	t.Run("of_half_open", func(t *testing.T) {
		inBubbleAway(t, setup{Failures: 1}, func(r *rig) {
			r.halfOpen()
			failure := late(r, errDown) // hangs: no other request gets through, so a probe decides
			time.Sleep(2 * defaultMinOpen)
			synctest.Wait()
			r.want(Closed)
			failure()
			r.want(Closed)
		})
	})
	t.Run("of_a_probe", func(t *testing.T) {
		inBubbleAway(t, setup{}, func(r *rig) {
			r.halfOpen()
			gate := make(chan struct{})
			r.probeBy(func(context.Context) error { <-gate; return nil })
			time.Sleep(2 * defaultMinOpen) // the probe has begun
			synctest.Wait()
			r.primary.fail(errDown)
			r.hit()
			r.want(Open)
			close(gate)
			synctest.Wait()
			r.want(Open)
		})
	})
}

func TestFailuresThatComeTogetherDoNotOpenTheBreaker(t *testing.T) {
	const failingFor = 25 * time.Millisecond
	inBubble(t, setup{FailingFor: failingFor}, func(r *rig) {
		r.primary.fail(errDown)
		for range 100 { // as when one server of a cluster fails
			r.hit()
		}
		r.want(Closed)
		time.Sleep(failingFor - time.Nanosecond)
		r.hit()
		r.want(Closed)
		time.Sleep(time.Nanosecond)
		r.hit()
		r.want(Open)
	})
}

func TestASuccessBeginsTheTimeOfFailuresAnew(t *testing.T) {
	const failingFor = 25 * time.Millisecond
	inBubble(t, setup{FailingFor: failingFor}, func(r *rig) {
		for range 10 { // for far longer than failingFor in all
			r.primary.fail(errDown)
			for range 10 {
				r.hit()
			}
			time.Sleep(failingFor - time.Nanosecond)
			r.hit()
			r.primary.follow(func(context.Context) error { return nil })
			r.hit()
		}
		r.want(Closed)
	})
}

// slow is a primary whose every answer comes after its callers have gone.
type slow struct {
	trip, patience time.Duration
	heard          atomic.Pointer[time.Time]
}

func (p *slow) answered() time.Time {
	if at := p.heard.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

func (p *slow) act(context.Context) error {
	time.AfterFunc(p.trip, func() {
		now := time.Now()
		p.heard.Store(&now)
	})
	time.Sleep(p.patience)
	return context.DeadlineExceeded
}

func TestTimeoutsDoNotOpenWhileRoundTripsComplete(t *testing.T) {
	p := &slow{trip: 6 * time.Millisecond, patience: 4 * time.Millisecond}
	inBubble(t, setup{FailingFor: defaultFailingFor, Answered: p.answered}, func(r *rig) {
		r.primary.follow(p.act)
		for range 200 {
			if r.hit() {
				r.t.Fatal("the primary decided")
			}
			r.want(Closed)
		}
		if got := r.Stats().Failures.Timeout; got != 200 {
			r.t.Errorf("%d timeouts; want 200", got)
		}

		p.trip = time.Hour // the primary is absent
		time.Sleep(10 * time.Millisecond)
		for range 10 {
			r.hit()
		}
		r.want(Open)
	})
}

func TestOtherFailuresOpenThoughRoundTripsComplete(t *testing.T) {
	inBubble(t, setup{FailingFor: defaultFailingFor, Answered: time.Now}, func(r *rig) {
		r.primary.follow(func(context.Context) error { time.Sleep(10 * time.Millisecond); return errDown })
		for range 2 * defaultFailures {
			r.hit()
		}
		r.want(Open)
	})
}

func TestTimeoutDoesNotOpenAHalfOpenBreakerWhileRoundTripsComplete(t *testing.T) {
	p := &slow{trip: time.Millisecond, patience: 4 * time.Millisecond}
	inBubbleAway(t, setup{Answered: p.answered}, func(r *rig) {
		r.halfOpen()
		r.primary.follow(p.act)
		r.hit()
		r.want(HalfOpen)
		p.trip = time.Hour
		time.Sleep(time.Millisecond)
		r.hit()
		r.want(HalfOpen) // the round trip of before still counts
		for range successesToClose {
			r.primary.fail(nil)
			r.hit()
		}
		r.want(Closed)
	})
}

func TestASilentShardIsNotAskedAndItsRequestsAreReleased(t *testing.T) {
	var silent, released atomic.Int64
	o := setup{
		Silent:  func() time.Duration { return time.Duration(silent.Load()) },
		Release: func(int) int { released.Add(1); return 7 },
	}
	inBubble(t, o, func(r *rig) {
		r.silence <- struct{}{} // of a silence that has ended meanwhile
		synctest.Wait()
		r.want(Closed)
		silent.Store(int64(65 * time.Millisecond))
		if !r.hit() {
			r.t.Error("a request looks for silence itself")
		}
		asked := r.primary.asked.Load()
		r.probeAnswers(errDown)
		r.silence <- struct{}{}
		synctest.Wait()
		r.want(Open)
		for range 10 {
			r.hit()
		}
		if got := r.primary.asked.Load(); got != asked {
			r.t.Errorf("a silent primary was asked %d times", got-asked)
		}
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "the store has not answered any call for 65ms") {
			r.t.Errorf("the reason is %v", err)
		}
		r.silence <- struct{}{} // of requests that had passed before
		synctest.Wait()
		if stats := r.Stats(); released.Load() != 2 || stats.Released != 14 || stats.Opened != 1 {
			r.t.Errorf("released %d times: %+v", released.Load(), stats)
		}
		if line := r.log.Lines()[1]; !strings.HasSuffix(line, "silent=65ms released=7") {
			r.t.Errorf("the log says %s", line)
		}
		silent.Store(0)
		r.probeAnswers(nil)
		time.Sleep(10 * time.Second)
		r.want(Closed)
	})
}

func TestAShardThatIsAwayOpensItsOwnCircuitOnly(t *testing.T) {
	o := setup{
		Shards: []string{"a", "b", "c"}, Sick: 1,
		Shard: func(c *store.Charge) int { return int(c.Key[0] - 'a') },
	}
	inBubble(t, o, func(r *rig) {
		asks := func(keys ...string) bool {
			var charges []store.Charge
			for _, key := range keys {
				c := charge(key, 5)
				c.OnError = store.OnErrorAllow
				charges = append(charges, c)
			}
			before := r.primary.asked.Load()
			must.Get(store.Take(r.t.Context(), r, charges, make([]algorithms.Decision, len(charges))))(r.t)
			return r.primary.asked.Load() > before
		}
		r.probeAnswers(errDown)
		r.primary.fail(errDown)
		for range defaultFailures {
			asks("b")
		}
		r.primary.fail(nil)
		want := func(states ...State) {
			r.t.Helper()
			for i, s := range r.Stats().Shards {
				if s.State != states[i] {
					r.t.Errorf("shard %s is %v; want %v", s.Name, s.State, states[i])
				}
			}
		}
		synctest.Wait()
		want(Closed, Open, Closed)
		if r.want(Open); r.Ready() != nil {
			r.t.Error("not ready, though two shards answer")
		}
		if err := r.Away(); err == nil || !strings.HasPrefix(err.Error(), "b of 3 shards is away since ") {
			r.t.Errorf("away: %v", err)
		}
		if !asks("a") || !asks("c") || !asks("a", "c", "a") || asks("b") || asks("a", "b") || asks("b", "c") {
			r.t.Error("a shard that answers was not asked, or one that is away was")
		}
		if line := r.log.Lines()[3]; !strings.Contains(line, `msg="store is away, limits go by their on_store_error" shard=b`) {
			r.t.Errorf("the log says %s", line)
		}

		// A request of several shards counts for each shard as that one answered.
		r.primary.fail(withoutOneError{errDown, 2})
		for range defaultFailures {
			asks("a", "c")
		}
		want(Closed, Open, Open)
		r.primary.fail(nil)
		r.probeAnswers(nil)
		time.Sleep(time.Second)
		want(Closed, Closed, Closed)
	})
}

// withoutOneError is the error of a request, to which one shard has given no answer.
type withoutOneError struct {
	error
	shard int
}

func (withoutOneError) Instead([]int64, []store.Part) {}
func (e withoutOneError) Answered(shard int) bool     { return shard != e.shard }

func TestAnOutageEndsHalfASecondAfterTheStoreIsBackHoweverLongItWas(t *testing.T) {
	for _, requests := range []bool{true, false} {
		for _, outage := range []time.Duration{time.Second, 3500 * time.Millisecond, time.Minute, time.Hour} {
			inBubbleAway(t, setup{}, func(r *rig) {
				time.Sleep(outage)
				r.probeAnswers(nil)
				r.primary.fail(nil)
				for back := time.Now(); r.State() != Closed; synctest.Wait() {
					if took := time.Since(back); took > 500*time.Millisecond {
						r.t.Fatalf("after an outage of %v, with requests %v: %v after %v", outage, requests, r.State(), took)
					}
					time.Sleep(10 * time.Millisecond)
					if requests {
						r.hit()
					}
				}
			})
		}
	}
}
