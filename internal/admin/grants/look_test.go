package grants

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// know makes a process know a grant for tenant=a, as if it came from Redis.
func (p *process) know(of limiter.Grant) {
	of.ID, of.Given = "1", time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setLocked(map[string]*limiter.Grant{"slot": &of})
}

// Keys that never fit together, and a repair that Redis refuses, end a look with an error. The
// known grants go on.
func TestALookEndsWhenARepairDoesNotHelp(t *testing.T) {
	for _, c := range []struct {
		name    string
		repair  error
		repairs int
		reason  string
	}{
		{"in vain", nil, maxRepairs + 1, "do not fit together"},
		{"refused", errors.New("out of memory"), 1, "out of memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				redis, repairs := new(sick), 0
				redis.become(empty)
				p := start(t, func(o *Options) { o.Redis = redis })
				p.know(of("a", 5))
				redis.become(func(script string) ([]string, error) {
					if strings.Contains(script, "HSET") {
						repairs++
						return []string{"ok", ""}, c.repair
					}
					return []string{brokenEpoch, "0", "0", "0"}, nil
				})
				p.mu.Lock()
				err := p.followLocked(t.Context())
				got := repairs
				p.mu.Unlock()
				if err == nil || !strings.Contains(err.Error(), c.reason) || got != c.repairs {
					t.Errorf("after %d repairs: %v; want %s after %d", got, err, c.reason, c.repairs)
				}
				time.Sleep(2 * syncEvery)
				p.wantLimit(t, "a", 5)
				if n := strings.Count(p.log.String(), "grants cannot be read from Redis"); n != 1 {
					t.Errorf("the log says %d times that grants cannot be read, want 1\n%s", n, &p.log)
				}
			})
		})
	}
}

// Grants that have ended are not put back into a Redis that has lost all, and the process forgets
// them.
func TestEndedGrantsAreNotPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis := new(sick)
		redis.become(empty)
		p := start(t, func(o *Options) { o.Redis = redis })
		redis.become(func(script string) ([]string, error) {
			if strings.Contains(script, "HSET") {
				t.Error("a change is sent to Redis")
			}
			return empty(script)
		})
		g := of("a", 5)
		g.Until = time.Now().Add(-time.Second)
		p.know(g)
		time.Sleep(2 * syncEvery)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.slots) != 0 {
			t.Errorf("the process still knows %d grants", len(p.slots))
		}
	})
}

// A Redis that takes grants and has none each time, as when somebody deletes them without end, has
// the last word.
func TestGrantsEndInARedisThatKeepsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis, restores := new(sick), 0
		redis.become(empty)
		p := start(t, func(o *Options) { o.Redis = redis })
		p.know(of("a", 5))
		redis.become(func(script string) ([]string, error) {
			if strings.Contains(script, "HSET") {
				restores++
			}
			return empty(script)
		})
		time.Sleep(2 * syncEvery)
		p.wantLimit(t, "a", 2)
		p.mu.Lock()
		defer p.mu.Unlock()
		if restores != maxRepairs+1 {
			t.Errorf("the grants were put back %d times, want %d", restores, maxRepairs+1)
		}
	})
}

// Many lost grants are put back in parts of bounded size. After a refused part the next look tries
// again.
func TestManyLostGrantsArePutBackInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 3*pageSize)
		p := start(t, func(o *Options) { o.Redis = s })
		p.mu.Lock()
		s.epoch, s.values, s.refused = "two", s.values[:1], 1
		p.mu.Unlock()
		time.Sleep(3 * syncEvery) // two looks
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := len(s.given); n != 3*pageSize-1 || s.most > pageSize {
			t.Errorf("the process put %d grants back, at most %d at once; want %d and %d", n, s.most, 3*pageSize-1, pageSize)
		}
	})
}

// Of more grants in Redis than the bound here, as many as the bound are in force, and the log names
// each other one.
func TestGrantsAboveTheBoundHereHaveNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 12)
		p := start(t, func(o *Options) { o.Redis, o.Max = s, 10 })
		if known, logged := len(p.List()), strings.Count(p.log.String(), "above the bound here"); known != 10 || logged != 2 {
			t.Errorf("the process knows %d grants and logged %d others, want 10 and 2\n%s", known, logged, &p.log)
		}
	})
}
