package shared

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// slow is a primary whose every answer comes after its callers have gone.
type slow struct {
	trip, patience time.Duration
	heard          atomic.Pointer[time.Time]
	silent         atomic.Int64
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
	inBubble(t, setup{FailingFor: DefaultFailingFor, Answered: p.answered}, func(r *rig) {
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
	inBubble(t, setup{FailingFor: DefaultFailingFor, Answered: time.Now}, func(r *rig) {
		r.primary.follow(func(context.Context) error { time.Sleep(10 * time.Millisecond); return errDown })
		for range 2 * DefaultFailures {
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

func TestSilentPrimaryIsNotAskedThoughNoRequestHasFailed(t *testing.T) {
	p := &slow{}
	inBubble(t, setup{FailingFor: DefaultFailingFor, Silent: func() time.Duration { return time.Duration(p.silent.Load()) }}, func(r *rig) {
		p.silent.Store(int64(DefaultFailingFor))
		if !r.hit() {
			r.t.Error("the primary was not asked")
		}
		r.want(Closed)
		begun := time.Now()
		silence := func() { p.silent.Store(int64(40*time.Millisecond + time.Since(begun))) }
		silence()
		r.hit()
		time.Sleep(DefaultFailingFor - 1)
		silence()
		r.hit()
		r.want(Closed) // one stall of this process looks the same
		time.Sleep(2 * time.Nanosecond)
		silence()
		asked := r.primary.asked.Load()
		for range 10 {
			r.hit()
		}
		r.want(Open)
		if got := r.primary.asked.Load(); got != asked {
			r.t.Errorf("a silent primary was asked %d times", got-asked)
		}
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "the store has not answered any call for 65ms") {
			r.t.Errorf("the reason is %v", err)
		}
		p.silent.Store(0)
		time.Sleep(10 * time.Second)
		r.want(Closed)
	})
}
