package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/parts"
)

// pace is how often requests of a leasedDay come.
type pace int32

const (
	hot    pace = iota // often enough for leases
	slowly             // a tenth of that
	paused
)

// A leasedDay is two sidecars with leases, and traffic for a key of each algorithm that is leased.
// The limits are of a day, so that hardly a hit of a test comes back.
type leasedDay struct {
	*fleet
	*ledger

	asking *traffic
	pace   atomic.Int32
	passed [2][]atomic.Int64 // hits, by sidecar and limit
}

// daily is the limit of each key.
const daily = 1200

func startLeasedDay(t *testing.T, url string) *leasedDay {
	t.Helper()
	d := &leasedDay{fleet: &fleet{}, ledger: newLedger(daily, 24*time.Hour)}
	d.limits = slices.DeleteFunc(d.limits, func(l algorithms.Limit) bool { return l.Algorithm == algorithms.SlidingWindowLog })
	for range 2 {
		d.start(t, d.rules(), url, leased()...)
	}
	d.awaitState(t, "closed")
	for i := range d.passed {
		d.passed[i] = make([]atomic.Int64, len(d.limits))
	}
	const slower = 10
	ticks := make([]int, 2*len(d.limits)) // of each worker
	d.asking = newTraffic(t, len(ticks), 6*time.Millisecond, func(ctx context.Context, worker int) string {
		ticks[worker]++
		if p := pace(d.pace.Load()); p == paused || p == slowly && ticks[worker]%slower != 0 {
			return "pause"
		}
		outcome := d.ask(ctx, d.clients[worker%2], worker/2, "hot")
		if outcome == "OK" {
			d.passed[worker%2][worker/2].Add(1)
		}
		return outcome
	})
	return d
}

// passes returns how many hits of each limit each sidecar has admitted.
func (d *leasedDay) passes() (all [2][]int64) {
	for i := range d.passed {
		for key := range d.passed[i] {
			all[i] = append(all[i], d.passed[i][key].Load())
		}
	}
	return all
}

// lost returns how many hits of a key can be lost, as docs/redis-restarts.md has it. Sentinels that
// do not agree have two primaries, and each sidecar may have used another one since before. Then
// the hits of the sidecar with fewer are lost. Where no sidecar has put counts back there was one
// primary, which had all counts.
func (d *leasedDay) lost(t *testing.T, before [2][]int64) int {
	t.Helper()
	seeded, most := 0, int64(0)
	for _, s := range d.sidecars {
		seeded += s.metric(t, "weir_store_seeded_keys_total")
	}
	if seeded == 0 {
		return 0
	}
	now := d.passes()
	for key := range d.limits {
		most = max(most, min(now[0][key]-before[0][key], now[1][key]-before[1][key]))
	}
	t.Logf("the new primary lacked counts of %d keys, so %d hits of a key can be lost", seeded, most)
	return int(most)
}

// awaitLeased waits until each sidecar has decided that many more requests from leases.
func (d *leasedDay) awaitLeased(t *testing.T, more int) {
	t.Helper()
	const decided = "weir_store_leased_decisions_total"
	for i, s := range d.sidecars {
		before := s.metric(t, decided)
		parts.Eventually(t, func() string {
			if n := s.metric(t, decided) - before; n < more {
				return fmt.Sprintf("sidecar %d has decided %d requests from leases, want %d", i, n, more)
			}
			return ""
		})
	}
}

// rest pauses the traffic until no sidecar holds hits, or asks for some, and Redis knows all. Then
// each sidecar learns the state of each key. A grant under way would be charged in a primary that
// dies, and go back to the next one.
func (d *leasedDay) rest(t *testing.T) {
	t.Helper()
	d.pace.Store(int32(paused))
	const enough = 10 // looks, at most 100 ms apart: afterwards no key is worth a lease
	looks, granted := 0, 0
	parts.Eventually(t, func() string {
		before, held, owed := granted, 0, 0
		granted = 0
		for _, s := range d.sidecars {
			held += s.metric(t, "weir_store_leased_hits")
			owed += s.metric(t, "weir_store_owed_keys")
			granted += s.metric(t, "weir_store_granted_hits_total")
		}
		if looks++; held+owed > 0 || granted != before {
			looks = 0
		}
		if looks < enough {
			return fmt.Sprintf("%d hits are held, those of %d keys are owed, and %d looks found the same", held, owed, looks)
		}
		return ""
	})
	parts.Eventually(t, func() string {
		before := d.away(t)
		for _, c := range d.clients {
			for _, l := range d.limits {
				c.probe(t, l.Algorithm.String(), "hot")
			}
		}
		if d.away(t) > before {
			return "a probe was decided without Redis"
		}
		return ""
	})
}

// awaitAsked waits until Redis decides all, and knows all hits. Limits stay divided for some
// seconds after an outage.
func (d *leasedDay) awaitAsked(t *testing.T) {
	t.Helper()
	d.awaitState(t, "closed")
	parts.Eventually(t, func() string {
		before, answers := d.away(t), d.answers()
		parts.Eventually(t, func() string {
			if n := d.answers() - answers; n < 40 {
				return fmt.Sprintf("%d requests were answered", n)
			}
			return ""
		})
		if more := d.away(t) - before; more > 0 {
			return fmt.Sprintf("%d charges were decided without Redis just now", more)
		}
		return ""
	})
	d.rest(t)
}

// answers returns the number of requests that were answered.
func (d *leasedDay) answers() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.history)
}

// awaitSpent waits until each key is denied for good.
func (d *leasedDay) awaitSpent(t *testing.T) {
	t.Helper()
	const many = 400 // denials in a row; held hits go back in between
	parts.Eventually(t, func() string {
		row := make([]int, len(d.limits))
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, r := range d.history {
			if row[r.Keys[0]]++; r.Admitted {
				row[r.Keys[0]] = 0
			}
		}
		if least := slices.Min(row); least < many {
			return fmt.Sprintf("%d denials in a row, want %d", least, many)
		}
		return ""
	})
}

func TestLeasesGoOnAfterAFailoverAndAdmitNothingTooMany(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (d *leasedDay, kill func() (await func() *parts.Redis)){
		"Sentinel": sentinelsUnderLeases,
		"Cluster":  clusterUnderLeases,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, kill := start(t)
			d.awaitLeased(t, 100)
			d.rest(t)
			before, passed := d.away(t), d.passes()
			await := kill()
			d.pace.Store(int32(slowly)) // else the shares of the sidecars end before the failover does
			parts.Eventually(t, func() string {
				if d.away(t) == before {
					return "nothing was decided without Redis"
				}
				return ""
			})
			next := await()
			d.awaitAsked(t)
			await()
			lost := d.lost(t, passed)
			calm := d.away(t)
			d.pace.Store(int32(hot))
			d.awaitLeased(t, 100)
			d.awaitSpent(t)
			late := d.away(t) - calm // on a busy machine: only such a hit can be one too many
			d.asking.stop()
			d.errorless(t)
			if now := await(); now != next {
				t.Skipf("there was another failover, from %s to %s, before replicas had all hits", next.Address(), now.Address())
			}
			d.atMost(t, daily*9/10, lost+late)
		})
	}
}

// sentinelsUnderLeases starts sidecars with leases over Sentinels, and returns a function that
// kills the primard.
func sentinelsUnderLeases(t *testing.T) (d *leasedDay, kill func() (await func() *parts.Redis)) {
	t.Helper()
	s := startSentinels(t, parts.SentinelOptions{})
	d = startLeasedDay(t, "redis-sentinel://"+strings.Join(s.Addresses(), ",")+"/"+parts.SentinelName)
	return d, func() func() *parts.Redis {
		old, err := s.Primary(parts.Soon(t))
		if err != nil {
			t.Fatal(err)
		}
		awaitCopies(t, old, slices.DeleteFunc(slices.Clone(s.Data), func(r *parts.Redis) bool { return r == old }))
		old.Kill()
		return func() *parts.Redis {
			next, err := s.AwaitNewPrimary(parts.Soon(t), old)
			if err != nil {
				t.Fatal(err)
			}
			parts.Eventually(t, func() string {
				for _, r := range s.Data {
					if r == next || !r.Running() {
						continue
					}
					list, err := r.Do(parts.Soon(t), "CLIENT", "LIST")
					if text, _ := list.ToString(); err == nil && strings.Contains(text, " name=weir ") {
						return r.Address() + " is still used, which is no primary any more"
					}
				}
				return ""
			})
			return next
		}
	}
}

// clusterUnderLeases starts sidecars with leases over a cluster, and returns a function that kills
// the primary of one key.
func clusterUnderLeases(t *testing.T) (d *leasedDay, kill func() (await func() *parts.Redis)) {
	t.Helper()
	c := startCluster(t, parts.RedisOptions{})
	d = startLeasedDay(t, clusterURL(c))
	return d, func() func() *parts.Redis {
		slot := slotOf(t, c, "weir:", algorithms.FixedWindow.String(), "hot")
		old, err := c.PrimaryOf(parts.Soon(t), slot)
		if err != nil {
			t.Fatal(err)
		}
		awaitCopies(t, old, []*parts.Redis{c.Nodes[(slices.Index(c.Nodes, old)+3)%6]})
		old.Kill()
		return func() *parts.Redis {
			next, err := c.AwaitNewPrimary(parts.Soon(t), slot, old)
			if err != nil {
				t.Fatal(err)
			}
			return next
		}
	}
}
