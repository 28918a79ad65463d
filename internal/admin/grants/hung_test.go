package grants

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/pkg/limiter"
)

// sick is a Redis that answers as its run says.
type sick struct {
	run atomic.Pointer[func(script string) ([]string, error)]
}

// Run implements [Redis].
func (s *sick) Run(_ context.Context, script string, _, _ []string) ([]string, error) {
	return (*s.run.Load())(script)
}

func (s *sick) become(run func(script string) ([]string, error)) { s.run.Store(&run) }

// onSick starts a process on a Redis without grants, and lets the test change the answers.
func onSick(t *testing.T) (*sick, *process) {
	t.Helper()
	redis := new(sick)
	redis.become(empty)
	return redis, on(t, redis)
}

// empty answers as a Redis without grants, which takes all changes.
func empty(script string) ([]string, error) {
	if strings.Contains(script, "HSET") {
		return []string{"ok", ""}, nil
	}
	return []string{"", "0", "0", "0", "1000000000000"}, nil
}

// A Redis that does not answer keeps neither a list nor a scrape of the metrics waiting.
func TestNobodyWaitsForARedisThatHangs(t *testing.T) {
	end := make(chan struct{})
	redis, p := onSick(t)
	t.Cleanup(func() { close(end) })
	hung := make(chan struct{}, 100)
	redis.become(func(string) ([]string, error) {
		hung <- struct{}{}
		<-end
		return nil, errors.New("too late")
	})
	<-hung
	registry, done := prometheus.NewRegistry(), make(chan error)
	registry.MustRegister(p.Metrics())
	go func() {
		p.List()
		p.Kept()
		_, err := registry.Gather()
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("still waiting after 10 s")
	}
}

// A Redis that has lost the grants and takes none, such as a replica, causes one line in the log,
// not one at each look.
func TestALossIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis, p := onSick(t)
		p.know(of("a", 5))
		redis.become(func(script string) ([]string, error) {
			if strings.Contains(script, "HSET") {
				return nil, errors.New("READONLY You can't write against a read only replica.") //nolint:revive // as Redis words it
			}
			return empty(script)
		})
		time.Sleep(time.Minute)
		p.wantLimit(t, "a", 5)
		if n := strings.Count(p.log.String(), "Redis has lost"); n != 1 {
			t.Errorf("the log says %d times that Redis has lost grants, want 1", n)
		}
	})
}

// While Redis does not answer, a grant that is unknown here may be in Redis. An operator must not
// take it for revoked.
func TestAnUnknownGrantMayBeInARedisThatDoesNotAnswer(t *testing.T) {
	redis := new(sick)
	redis.become(func(string) ([]string, error) { return nil, errors.New("is away") })
	p := on(t, redis)
	if _, _, err := p.Revoke(t.Context(), "id", "me"); err == nil || errors.Is(err, limiter.ErrUnknownGrant) {
		t.Errorf("without an answer: got %v", err)
	}
	redis.become(empty)
	if _, _, err := p.Revoke(t.Context(), "id", "me"); !errors.Is(err, limiter.ErrUnknownGrant) {
		t.Errorf("with an answer: got %v", err)
	}
}
