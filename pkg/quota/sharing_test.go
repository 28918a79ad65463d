package quota

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// shareAmong runs schedules of several processes until the oracle finds a mistake. The results have
// the number of the last schedule, and all requests.
func shareAmong(t *testing.T, m mistake, first, runs int) (found bool, last int, requests int64) {
	t.Helper()
	for last = first; last < first+runs; last++ {
		of := limitsTested[last%len(limitsTested)]
		l, err := LimitOf(of.limit)
		if err != nil {
			t.Fatal(err)
		}
		s := newSchedule(uint64(last), of.envoys, l, m)
		if of.limit.Algorithm == algorithms.FixedWindow {
			s.window, s.perWin = of.limit.Period, int64(of.limit.Requests)
		}
		s.addRedis(2+s.random.IntN(3), l)
		s.harms = []int{4000, 12_000, 40_000}[s.random.IntN(3)]
		s.quiet = 110 * time.Second
		s.run(170 * time.Second)
		requests += s.attempts
		if s.over {
			return true, last, requests
		}
	}
	return false, last - 1, requests
}

func TestSeveralProcessesAdmitAtMostTheLimit(t *testing.T) {
	t.Parallel()
	first, runs := schedulesOf(t, 70)
	found, last, requests := shareAmong(t, none, first, runs)
	if found {
		t.Errorf("schedule %d: an interval has more than burst + rate × length", last)
	}
	t.Logf("%d schedules, %d requests", last-first+1, requests)
}

func TestTheOracleFindsEachMistakeOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	for name, m := range sharingMistakes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, last, _ := shareAmong(t, m, 0, 300)
			if !found {
				t.Errorf("%d schedules pass with the mistake", last+1)
			}
			t.Logf("found by schedule %d", last)
		})
	}
}

func TestProcessesUseALimitTogether(t *testing.T) {
	t.Parallel()
	bucket := func(n, burst uint32, period time.Duration) algorithms.Limit {
		return algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: n, Period: period, Extra: algorithms.Extra{Burst: burst}}
	}
	hot := func(envoy, hottest int) float64 {
		if envoy == hottest {
			return 1800
		}
		return 200. / 7
	}
	for _, c := range []struct {
		name  string
		limit algorithms.Limit
		least float64 // part of the limit
		rate  func(envoy int, now time.Duration) float64
	}{
		{"steady, one Envoy has 90 %", bucket(1000, 200, time.Second), 0.92, func(envoy int, _ time.Duration) float64 { return hot(envoy, 0) }},
		{"a hot spot that moves each 30 s", bucket(1000, 200, time.Second), 0.75, func(envoy int, now time.Duration) float64 {
			return hot(envoy, int(now/(30*time.Second))%8)
		}},
		{"all have much", bucket(1000, 200, time.Second), 0.92, func(int, time.Duration) float64 { return 400 }},
		{"3 per second", bucket(3, 3, time.Second), 0.57, func(int, time.Duration) float64 { return 2 }},
		{"1 per 10 seconds", bucket(1, 1, 10*time.Second), 0.6, func(int, time.Duration) float64 { return 2 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, err := LimitOf(c.limit)
			if err != nil {
				t.Fatal(err)
			}
			s := newSchedule(1, 8, l, none)
			s.calm = true
			s.addRedis(2, l)
			for at := time.Second; at <= 10*time.Minute; at += time.Second {
				for i, e := range s.envoys {
					e.rate = c.rate(i, at)
				}
				s.run(at)
				if at == time.Minute {
					s.admitted = 0
				}
			}
			used := float64(s.admitted) * token / float64(l.Rate) / 540
			t.Logf("used %.1f %%", used*100)
			if s.over || used < c.least {
				t.Errorf("used %.3f of the limit, over %t; must be at least %.2f", used, s.over, c.least)
			}
		})
	}
}
