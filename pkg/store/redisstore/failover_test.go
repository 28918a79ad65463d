package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	near "github.com/weirproxy/weir/pkg/store/shared"
	"github.com/weirproxy/weir/test/parts"
)

// A failover begins before a boundary and ends after it. Half of the keys have their boundary then.
// The hits before it, also in the outage, count in their own window only. The other keys go on.
// Redis forgets a window of a first hit at its end, so that hits of the outage may begin another
// one (docs/semantics.md 12.4).
func TestAFailoverAroundABoundaryKeepsCountsAndWindows(t *testing.T) {
	const limit, before, during = 40, 10, 20
	sentinels := parts.SentinelsFor(t, parts.SentinelOptions{})
	for _, s := range sentinels.Sentinels { // no new primary before the boundary
		must.Get(s.Do(parts.Soon(t), "SENTINEL", "SET", parts.SentinelName, "down-after-milliseconds", "1000"))(t)
	}
	s := open(t, []string{"redis-sentinel://" + strings.Join(sentinels.Addresses(), ",") + "/" + parts.SentinelName}, Options{Timeout: DefaultTimeout})
	front := sharing(t, s)
	first := algorithms.Limit{
		Algorithm: algorithms.CalendarWindow, Requests: limit, Period: 4 * time.Second,
		Extra: algorithms.Extra{Calendar: calendarOf(algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1, FirstHit: true})},
	}
	_, d := ask(t, s, hit("first", first))
	boundary := time.Now().Add(d[0].ResetAfter).Round(time.Second).UTC()
	of := func(a algorithms.Algorithm, at time.Time) algorithms.Limit {
		spec := algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1, At: at.Sub(at.Truncate(24 * time.Hour))}
		return algorithms.Limit{Algorithm: a, Requests: limit, Period: 24 * time.Hour, Extra: algorithms.Extra{Calendar: calendarOf(spec)}}
	}
	type key struct {
		name  string
		limit algorithms.Limit
		left  int           // after the failover
		reset time.Duration // from the boundary on, when none is left
	}
	noon, day := boundary.Add(12*time.Hour), 24*time.Hour
	keys := []key{
		{"first", first, limit, 0},
		{"window", of(algorithms.CalendarWindow, boundary), limit, day},
		{"counter", of(algorithms.CalendarCounter, boundary), limit - before - during, 2 * day},
		{"window goes on", of(algorithms.CalendarWindow, noon), limit - before - during, day / 2},
		{"counter goes on", of(algorithms.CalendarCounter, noon), limit - before - during, day + day/2},
	}
	take := func(n int) {
		t.Helper()
		for _, k := range keys {
			c := hit(k.name, k.limit)
			c.Exact = true
			for range n {
				wants(t, true, front, c)
			}
		}
	}
	take(before)
	old := must.Get(sentinels.Primary(parts.Soon(t)))(t)
	must.Get(old.Do(parts.Soon(t), "WAIT", "2", "0"))(t)
	time.Sleep(time.Until(boundary.Add(-700 * time.Millisecond)))
	old.Kill()
	take(during)
	if now := time.Now(); now.After(boundary) {
		t.Skipf("a busy machine: the hits of the outage took until %v after the boundary", now.Sub(boundary))
	}
	eventually(t, "the new primary decides", func() bool { return front.Stats().State == near.Closed })
	told(t, s)
	if time.Now().Before(boundary) {
		t.Fatal("the failover ended before the boundary")
	}
	unknown := s.Stats().UnknownHits // on a busy machine, of a telling without an answer in time
	for _, k := range keys {
		c := hit(k.name, k.limit)
		c.Exact = true
		left := remains(t, s, c)
		if twice := uint64(k.left) - uint64(left); twice <= unknown {
			unknown -= twice
		} else if k.limit != first || left != limit-during {
			t.Errorf("%s: %d hits left; want %d", k.name, left, k.left)
		}
		for range left {
			wants(t, true, front, c)
		}
		d := wants(t, false, front, c)
		at := time.Now().Add(d[0].ResetAfter).Sub(boundary)
		if at = at.Round(time.Second); at != k.reset && k.limit != first {
			t.Errorf("%s: the reset is %v after the boundary; want %v", k.name, at, k.reset)
		}
	}
	t.Logf("the new primary decides %v after the boundary; %+v", time.Since(boundary), front.Stats())
}
