package limiter_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/limiter"
)

func TestEachKeyHasABucketOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := must.Get(limiter.PerKey(limiter.PerMinute(60), 3))(t)
		defer limits.Close()
		for i := range 3 {
			if r := limits.Allow("alice"); !r.Allowed || r.Remaining != uint64(2-i) {
				t.Errorf("hit %d of the burst: got %+v, want %d remaining", i, r, 2-i)
			}
		}
		if r := limits.Allow("alice"); r.Allowed || r.RetryAfter != time.Second {
			t.Errorf("after the burst: got %+v, want denied for 1s", r)
		}
		if r := limits.Allow(""); !r.Allowed || r.Remaining != 2 {
			t.Errorf("the empty key: got %+v, want a bucket of its own", r)
		}
		time.Sleep(time.Second)
		if r := limits.Allow("alice"); !r.Allowed || limits.Allow("alice").Allowed {
			t.Errorf("a second later: got %+v, want one more hit", r)
		}
	})
}

func TestPerKeyRefusesARateOutOfBounds(t *testing.T) {
	for name, in := range map[string]struct {
		rate  limiter.Rate
		burst uint32
	}{
		"no requests":   {limiter.PerSecond(0), 1},
		"no burst":      {limiter.PerHour(1), 0},
		"no time":       {limiter.Rate{Requests: 1}, 1},
		"too long":      {limiter.Rate{Requests: 1, Per: 100 * 365 * 24 * time.Hour}, 1},
		"below a milli": {limiter.Rate{Requests: 1, Per: time.Microsecond}, 1},
	} {
		if _, err := limiter.PerKey(in.rate, in.burst); err == nil || !strings.HasPrefix(err.Error(), "rate") {
			t.Errorf("%s: got %v, want an error about the rate", name, err)
		}
	}
}

func TestAllowOfAKeyAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	limits := must.Get(limiter.PerKey(limiter.PerSecond(1), 1))(t)
	defer limits.Close()
	if n := testing.AllocsPerRun(1000, func() { limits.Allow("alice") }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
