package shared

import (
	"os"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// drawSchedule draws a schedule of that many decisions.
func drawSchedule(t *rapid.T, decisions int64) schedule {
	p := schedule{
		seed:       rapid.Uint64().Draw(t, "seed"),
		leasing:    rapid.IntRange(1, 6).Draw(t, "leasing"),
		exact:      rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "exact"),
		large:      rapid.SampledFrom([]float64{0, 0, 0, 0.001, 0.01}).Draw(t, "large"),
		moves:      rapid.SampledFrom([]int64{0, 50_000, 300_000, 2_000_000}).Draw(t, "moves"),
		batch:      rapid.SampledFrom([]int{1, 4, 32}).Draw(t, "batch"),
		usualDelay: rapid.SampledFrom([]float64{50, 300, 3000}).Draw(t, "delay"),
		timeout:    rapid.SampledFrom([]int64{2000, 10_000, 10_000, 100_000, 500_000}).Draw(t, "timeout"),
		lead:       rapid.SampledFrom([]int64{0, 2000}).Draw(t, "lead"),
		lost:       rapid.SampledFrom([]float64{0, 0, 0, 0.01, 0.2}).Draw(t, "lost"),
		spendings:  rapid.SampledFrom([]int64{50_000, 500_000, 3_000_000, 10_000_000}).Draw(t, "spendings"),
		pauses:     seldom(t, "pauses", 500_000, 3_000_000),
		stops:      seldom(t, "stops", 300_000, 3_000_000),
		deaths:     seldom(t, "deaths", 500_000, 3_000_000),
		cuts:       seldom(t, "cuts", 100_000, 1_000_000),
		most:       decisions,
	}
	if p.timeout < 4*int64(p.usualDelay) && p.seed%8 != 0 {
		p.timeout = 4 * int64(p.usualDelay)
	}
	p.fleetKnown = rapid.IntRange(1, p.leasing+p.exact).Draw(t, "fleet known")
	perSecond := 0.0
	for range rapid.IntRange(1, 3).Draw(t, "keys") {
		l := drawLimit(t)
		p.limits = append(p.limits, l)
		perSecond += float64(l.Requests) / l.Period.Seconds()
	}
	factor := rapid.SampledFrom([]float64{0.5, 0.8, 0.9, 0.95, 1.2, 3}).Draw(t, "load")
	p.load = max(factor*perSecond, 300*float64((p.leasing+p.exact)*len(p.limits))) / 1e6
	return p
}

// seldom draws the mean time between two events that most schedules do not have.
func seldom(t *rapid.T, name string, often, rarely int64) int64 {
	return rapid.SampledFrom([]int64{0, 0, 0, 0, often, rarely}).Draw(t, name)
}

// drawLimit draws a limit of an algorithm with leases.
func drawLimit(t *rapid.T) algorithms.Limit {
	l := algorithms.Limit{
		Algorithm: rapid.SampledFrom([]algorithms.Algorithm{
			algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingWindowCounter, algorithms.TokenBucketInteger,
		}).Draw(t, "algorithm"),
		Requests: rapid.SampledFrom([]uint32{50, 500, 3000, 7777, 20_000}).Draw(t, "requests"),
		Period:   rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second, 20 * time.Second}).Draw(t, "period"),
	}
	if l.Algorithm == algorithms.TokenBucket {
		l.Burst = uint32(float64(l.Requests) * rapid.SampledFrom([]float64{0.5, 1, 3, 30}).Draw(t, "burst"))
	}
	return l
}

// schedules returns schedules of that many decisions by number. The same number gives the same
// schedule.
func schedules(decisions int64) func(number int) schedule {
	g := rapid.Custom(func(t *rapid.T) schedule { return drawSchedule(t, decisions) })
	return func(number int) schedule { return g.Example(number) }
}

// WEIR_SIMULATED_DECISIONS=1e9 makes a long run of longer schedules, from number WEIR_TEST_SEED on.
func TestNoScheduleAdmitsTooMany(t *testing.T) {
	decisions, each, first := 4e6, int64(20_000), 0
	if race.Enabled {
		decisions = 4e5
	}
	if text := os.Getenv("WEIR_SIMULATED_DECISIONS"); text != "" {
		var err error
		if decisions, err = strconv.ParseFloat(text, 64); err != nil {
			t.Fatalf("WEIR_SIMULATED_DECISIONS: %v", err)
		}
		each = 200_000
		first, _ = strconv.Atoi(os.Getenv("WEIR_TEST_SEED"))
	}
	of := schedules(each)
	var sum simulation // the counters of all
	for number := first; float64(sum.decisions) < decisions; number++ {
		s := newSimulation(of(number))
		if err := s.run(); err != nil {
			t.Fatalf("schedule %d: %v", number, err)
		}
		sum.decisions += s.decisions
		sum.local += s.local
		sum.asked += s.asked
		sum.granted += s.granted
		sum.returnedHits += s.returnedHits
	}
	t.Logf("%d decisions: %d from leases, %d by Redis, the others from remembered denials; %d grants, %d hits given back",
		sum.decisions, sum.local, sum.asked, sum.granted, sum.returnedHits)
}
