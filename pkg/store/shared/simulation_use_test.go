package shared

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// saturated returns a schedule of four sidecars and clients that want that many times the limit,
// for about 30 seconds.
func saturated(l algorithms.Limit, times float64, moves time.Duration) schedule {
	p := schedule{
		seed: 12, limits: []algorithms.Limit{l}, leasing: 4, fleetKnown: 4, moves: moves.Microseconds(), batch: 1,
		usualDelay: 150, timeout: 10_000,
	}
	p.load = times * float64(l.Requests) / float64(l.Period.Microseconds())
	p.most = int64(p.load * 30e6)
	return p
}

// runUntil lets the simulation run until a time.
func (s *simulation) runUntil(end instantOfEvent) {
	for s.now < end {
		s.step()
	}
}

func TestAFleetUsesItsLimit(t *testing.T) {
	if race.Enabled {
		t.Skip("decides millions of requests")
	}
	for _, a := range []algorithms.Algorithm{
		algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingWindowCounter, algorithms.TokenBucketInteger,
	} {
		for _, c := range []struct {
			name  string
			times float64
			moves time.Duration
			least float64 // percent of the hits that the fleet admits without leases
		}{
			{"under even load", 1.2, 0, 99},
			{"under even load of twice the limit", 2, 0, 99},
			{"under load that moves in 100 ms", 1.2, 100 * time.Millisecond, 97},
			{"under load that moves in a second", 1.2, time.Second, 97},
			{"under load of twice the limit that moves in a second", 2, time.Second, 97},
		} {
			t.Run(fmt.Sprint(a, " ", c.name), func(t *testing.T) {
				t.Parallel()
				limit := algorithms.Limit{Algorithm: a, Requests: 2000, Period: time.Second}
				if a == algorithms.TokenBucket {
					limit.Burst = 4000
				}
				p := saturated(limit, c.times, c.moves)
				leasing := newSimulation(p)
				if err := leasing.run(); err != nil {
					t.Fatal(err)
				}
				p.leasing, p.exact = 0, p.leasing
				exact := newSimulation(p)
				exact.runUntil(leasing.now)
				with, without := leasing.oracles[0].admitted, exact.oracles[0].admitted
				used := 100 * float64(with) / float64(without)
				t.Logf("%.2f %% of %d hits; %.0f %% from leases", used, without, 100*float64(leasing.local)/float64(with))
				if used < c.least {
					t.Errorf("%.2f %% of %d hits were admitted; want %v %% at least", used, without, c.least)
				}
			})
		}
	}
}
