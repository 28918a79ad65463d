package grants

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/testing/metricstest"
	"github.com/weirproxy/weir/internal/testing/must"
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
				redis, p := onSick(t)
				repairs := 0
				p.know(of("a", 5))
				redis.become(func(script string) ([]string, error) {
					if strings.Contains(script, "HSET") {
						repairs++
						return []string{"ok", ""}, c.repair
					}
					return []string{brokenEpoch, "0", "0", "0", "1000000000000"}, nil
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
		redis, p := onSick(t)
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
		redis, p := onSick(t)
		restores := 0
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
		p := on(t, s)
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

// Of more grants in Redis than the bound here, as many as the bound are in force. The process reads
// no others, and the log has one line in a minute. The process reads all again when Redis has no
// more than the bound.
func TestGrantsAboveTheBoundHereHaveNoEffect(t *testing.T) {
	const most, all = 300, 20 * pageSize
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, all)
		p := start(t, func(o *Options) { o.Redis, o.Max = s, most })
		if known := len(p.List()); known != most || s.read > most+pageSize {
			t.Errorf("the process knows %d grants and read %d, want %d and at most a page more", known, s.read, most)
		}
		registry := prometheus.NewPedanticRegistry()
		must.Do(t, registry.Register(p.Metrics()))
		if got := metricstest.Gather(t, registry, "weir_grants_")["weir_grants_unknown"]; got != all-most {
			t.Errorf("weir_grants_unknown is %v, want %d", got, all-most)
		}
		for range 100 { // somebody gives grants beside all processes
			p.mu.Lock()
			s.values = append(s.values, s.values[0])
			p.mu.Unlock()
			time.Sleep(3 * time.Second)
		}
		if n := strings.Count(p.log.String(), "more grants in Redis than there may be here"); n == 0 || n > 6 {
			t.Errorf("in five minutes the log has %d lines about grants above the bound, want one in a minute\n%s", n, &p.log)
		}
		if n := strings.Count(p.log.String(), "\n"); n > 10 {
			t.Errorf("in five minutes the log has %d lines\n%s", n, &p.log)
		}
		if known := len(p.List()); known != most || s.read > most+pageSize+200 {
			t.Errorf("later the process knows %d grants and read %d", known, s.read)
		}
		p.mu.Lock()
		s.epoch, s.values, s.slots = "two", s.values[:most], 7
		p.mu.Unlock()
		time.Sleep(2 * countEvery)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.slots["s7"] == nil || len(p.slots) != most {
			t.Errorf("the process knows %d grants, want the %d of now", len(p.slots), most)
		}
	})
}

// A look stops at the bound. A grant that was read before, and revoked meanwhile, ends all the
// same.
func TestARevokeWhileALookStopsAtTheBoundIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 20*pageSize)
		s.after = func() {
			s.after, s.named = nil, map[int]string{len(s.values): "s0"}
			s.values = append(s.values, "")
		}
		p := start(t, func(o *Options) { o.Redis, o.Max = s, 300 })
		time.Sleep(2 * syncEvery)
		p.wantLimit(t, "0", 2)
		p.wantLimit(t, "1", 5)
	})
}

// Grants have a bound in bytes too: the ones with the longest texts would take 400 MB.
func TestLongGrantsHaveABoundInBytes(t *testing.T) {
	const all = 20_000
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, all)
		long := of(strings.Repeat("x", limiter.MaxGrantKey-100), 5)
		for i := range s.values {
			s.values[i] = valueOf(fmt.Sprint("id", i), long)
		}
		p := on(t, s)
		bytes := 0
		for _, g := range p.List() {
			bytes += sizeOf(g)
		}
		if bytes > maxBytes || bytes < maxBytes*9/10 {
			t.Errorf("the grants take %d bytes, want about %d", bytes, maxBytes)
		}
		if _, _, err := p.Grant(t.Context(), of(strings.Repeat("y", limiter.MaxGrantKey-100), 5)); !errors.Is(err, limiter.ErrTooManyGrants) {
			t.Errorf("got %v, want ErrTooManyGrants", err)
		}
	})
}

// A program with access to Redis can change, remove and break grants all the time. The log has a
// bound of lines.
func TestChangesInRedisCauseABoundedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, 2*manyChanges)
		p := on(t, s)
		for i := range 300 {
			p.mu.Lock()
			s.epoch = fmt.Sprint("epoch", i)
			for j := range s.values {
				if j < manyChanges {
					s.values[j] = strings.ReplaceAll(s.values[j], `"id":"`, `"id":"x`)
				}
				if j > 2*manyChanges-4 {
					s.values[j] = "9 nonsense"
				}
			}
			s.fails = i%2 > 0
			p.mu.Unlock()
			time.Sleep(syncEvery)
		}
		if n := strings.Count(p.log.String(), "\n"); n > linesAtOnce+150 {
			t.Errorf("in two minutes the log has %d lines", n)
		}
	})
}
