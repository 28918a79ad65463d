package quota

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// limitsTested are limits of all kinds, each with the number of Envoys.
var limitsTested = []struct {
	limit  algorithms.Limit
	envoys int
}{
	{algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1000, Period: time.Second, Extra: algorithms.Extra{Burst: 200}}, 8},
	{algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 100, Period: time.Second}, 3},
	{algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 100, Period: time.Second, Extra: algorithms.Extra{Burst: 2000}}, 3},
	{algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 3, Period: time.Second}, 8},
	{algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: 10 * time.Second}, 8},
	{algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 600, Period: 10 * time.Second}, 4},
	{algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 20, Period: 20 * time.Second}, 4},
}

// kind makes the schedule of a number, with a mistake. The schedule lasts for a time.
type kind func(t *testing.T, number int, m mistake) (s *schedule, lasts time.Duration)

// find runs schedules with a mistake, from number first on, until the oracle finds one. The results
// have the number of the last schedule, all requests, and the requests that passed.
func find(t *testing.T, of kind, m mistake, first, runs int) (found bool, last int, requests, passed int64) {
	t.Helper()
	for last = first; last < first+runs; last++ {
		s, lasts := of(t, last, m)
		s.run(lasts)
		requests, passed = requests+s.attempts, passed+s.admitted
		if s.over {
			return true, last, requests, passed
		}
	}
	return false, last - 1, requests, passed
}

// testNone runs schedules without a mistake.
func testNone(t *testing.T, of kind, usual int) {
	t.Helper()
	race.Without(t)
	first, runs := schedulesOf(t, usual)
	found, last, requests, passed := find(t, of, none, first, runs)
	if found {
		t.Errorf("schedule %d: an interval has more than burst + rate × length", last)
	}
	t.Logf("%d schedules, %d requests, of which %d pass", last-first+1, requests, passed)
}

// testMistakes has the oracle find each mistake.
func testMistakes(t *testing.T, of kind, mistakes map[string]mistake, runs int) {
	t.Helper()
	race.Without(t)
	for name, m := range mistakes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, last, _, _ := find(t, of, m, rare[m], runs)
			if !found {
				t.Errorf("%d schedules pass with the mistake, the last one is %d", runs, last)
			}
			t.Logf("found by schedule %d", last)
		})
	}
}

// tested returns the schedule of a number for one of limitsTested.
func tested(t *testing.T, number int, m mistake) *schedule {
	t.Helper()
	of := limitsTested[number%len(limitsTested)]
	l, window := must.Get(LimitOf(of.limit))(t), of.limit.Algorithm == algorithms.FixedWindow
	if m == tokensOverTheEnd && window {
		l = Limit{Rate: scale(int64(of.limit.Requests)*token, time.Second, of.limit.Period), Burst: int64(of.limit.Requests) * token}
	}
	s := newSchedule(uint64(number), of.envoys, l, m)
	if window {
		s.window, s.perWin = of.limit.Period, int64(of.limit.Requests)
	}
	return s
}

func alone(t *testing.T, number int, m mistake) (s *schedule, lasts time.Duration) {
	t.Helper()
	return tested(t, number, m), 100 * time.Second
}

// schedulesOf returns the number of the first schedule and of all, in place of usual ones.
// WEIR_SCHEDULES sets the number of schedules, and WEIR_TEST_SEED the number of the first one.
func schedulesOf(t *testing.T, usual int) (first, runs int) {
	t.Helper()
	text := os.Getenv("WEIR_SCHEDULES")
	if text == "" && testing.Short() {
		return 0, usual / 4
	}
	if text == "" {
		return 0, usual
	}
	runs, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("WEIR_SCHEDULES: %v", err)
	}
	first, _ = strconv.Atoi(os.Getenv("WEIR_TEST_SEED"))
	return first, runs
}

func TestNoIntervalHasMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	testNone(t, alone, 120)
}

func TestTheOracleFindsEachMistake(t *testing.T) {
	t.Parallel()
	testMistakes(t, alone, mistakes, 240)
}

// useOf is a load of eight Envoys, and the part of the limit that they use at least.
type useOf struct {
	name  string
	limit algorithms.Limit
	least float64
	rate  func(envoy int, now time.Duration) float64
}

// usesTested returns loads, with the least part of a crowd.
func usesTested(crowd float64) []useOf {
	bucket := func(n, burst uint32, period time.Duration) algorithms.Limit {
		return algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: n, Period: period, Extra: algorithms.Extra{Burst: burst}}
	}
	hot := func(envoy, hottest int) float64 {
		if envoy == hottest {
			return 1800
		}
		return 200. / 7
	}
	return []useOf{
		{"steady, one Envoy has 90 %", bucket(1000, 200, time.Second), 0.92, func(envoy int, _ time.Duration) float64 { return hot(envoy, 0) }},
		{"a hot spot that moves each 30 s", bucket(1000, 200, time.Second), 0.75, func(envoy int, now time.Duration) float64 {
			return hot(envoy, int(now/(30*time.Second))%8)
		}},
		{"all have much", bucket(1000, 200, time.Second), 0.92, func(int, time.Duration) float64 { return 400 }},
		{"a crowd, 40 s of each minute", bucket(1000, 200, time.Second), crowd, func(_ int, now time.Duration) float64 {
			if now%time.Minute < 20*time.Second {
				return 100. / 8
			}
			return 2000. / 8
		}},
		{"3 per second", bucket(3, 3, time.Second), 0.6, func(int, time.Duration) float64 { return 2 }},
		{"1 per 10 seconds", bucket(1, 1, 10*time.Second), 0.6, func(int, time.Duration) float64 { return 2 }},
	}
}

// use runs a load for ten minutes. A limit is divided among so many processes.
func (c *useOf) use(t *testing.T, processes int) {
	t.Helper()
	l := must.Get(LimitOf(c.limit))(t)
	s := newSchedule(1, 8, l, none)
	s.calm = true
	if processes > 1 {
		s.addRedis(processes, l)
	}
	for at := time.Second; at <= 10*time.Minute; at += time.Second {
		for i, e := range s.envoys {
			e.rate = c.rate(i, at)
		}
		s.run(at)
		if at == time.Minute {
			one := *s.oracle
			s.admitted, s.ideal, s.one = 0, 0, &one
		}
	}
	used := float64(s.admitted) / float64(s.ideal)
	t.Logf("used %.1f %%", used*100)
	if s.over || used < c.least {
		t.Errorf("used %.3f of the limit, over %t; must be at least %.2f", used, s.over, c.least)
	}
}

func TestALimitIsUsedByThoseWhoNeedIt(t *testing.T) {
	t.Parallel()
	for _, c := range usesTested(0.95) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.use(t, 1)
		})
	}
}

func TestAWokenClientIsServedAtOnceWhileAnotherOneHasAll(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		s := newSchedule(seed, 8, Limit{Rate: 1000 * token, Burst: 200 * token}, none)
		s.calm = true
		for at := tick; at <= time.Minute; at += tick {
			for i, e := range s.envoys {
				if e.rate = 0; i == 0 {
					e.rate = 1800
				} else if begins := time.Duration(6+6*i) * time.Second; at > begins && at < begins+time.Second {
					e.rate = 400
				}
			}
			s.run(at)
		}
		for i, e := range s.envoys[1:] {
			if wait := e.passed - e.asked; wait > 50*time.Millisecond || e.passed == 0 {
				t.Errorf("seed %d: envoy %d waits for %v", seed, i+1, wait)
			}
		}
	}
}

func TestABucketHasAtMostItsSizeAndRateAndEnvoyTakesItAsAnother(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(2, 2))
	before := Bucket{}
	for range 200_000 {
		size, rate := random.Int64N(1<<random.IntN(30)+1)*token/8, random.Int64N(1<<random.IntN(60)+1)
		if random.IntN(2) == 0 && before.Max > 0 {
			size = before.tokens()
			for rate = before.rate(); random.IntN(2) == 0; rate /= 10 {
			}
		}
		b := bucketOf(size, rate, before)
		if b.tokens() > size || b.rate() > rate || b.Max > 0 && (b.Fill == 0 || b.Interval == 0) {
			t.Fatalf("%d tokens, %d: got %+v, a rate of %d", size, rate, b, b.rate())
		}
		if b.Max == before.Max && b.Fill == before.Fill && b.Interval != before.Interval {
			t.Fatalf("%+v differs from %+v in its interval alone", b, before)
		}
		before = b
	}
}

func TestSharesAreMaxMinAndNeverAboveTheRate(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		rate := random.Int64N(1 << random.IntN(60))
		demands := make([]int64, 1+random.IntN(9))
		for i := range demands {
			demands[i] = random.Int64N(rate + 1)
		}
		got := append([]int64(nil), demands...)
		shares(got, rate, make([]int, len(got)))
		least := leastByFilling(demands, rate)
		sum := int64(0)
		for i := range got {
			if sum += got[i]; got[i] < least[i]-int64(len(got)) {
				t.Fatalf("demands %v of %d: shares %v; max-min gives %v", demands, rate, got, least)
			}
		}
		if sum > rate {
			t.Fatalf("demands %v: shares %v are above %d", demands, got, rate)
		}
	}
}

// leastByFilling is max-min by the definition: water rises until the rate is given or all demands
// are met. The level of the water is found by bisection.
func leastByFilling(demands []int64, rate int64) []int64 {
	at := func(level int64) (shares []int64, sum int64) {
		for _, d := range demands {
			shares = append(shares, min(d, level))
			sum += min(d, level)
		}
		return shares, sum
	}
	low, high := int64(0), rate
	for low < high {
		middle := low + (high-low+1)/2
		if _, sum := at(middle); sum <= rate {
			low = middle
		} else {
			high = middle - 1
		}
	}
	shares, _ := at(low)
	return shares
}

func TestANewClientHasABucketAtOnce(t *testing.T) {
	t.Parallel()
	d := New(Limit{Rate: 1000 * token, Burst: 200 * token}, 0)
	first := d.Join(0, nil)
	orders, _ := d.Step(0, nil)
	d.Acknowledge(first, orders[0].Seq, time.Millisecond)
	d.Report(first, 4000, 4000, 4*time.Second)
	if d.Step(4*time.Second, nil); d.free() > 100*token {
		t.Fatalf("%d of the rate are free: the first client must have nearly all", d.free())
	}
	second := d.Join(4500*time.Millisecond, nil)
	orders, _ = d.Step(4500*time.Millisecond, nil)
	for _, o := range orders {
		if o.Client == second && o.Bucket.Max >= 10 {
			return
		}
	}
	t.Errorf("the second client gets no bucket at once: %+v", orders)
}

func TestALowerLimitIsKeptAndUsedWithinASecond(t *testing.T) {
	t.Parallel()
	s := newSchedule(3, 4, Limit{Rate: 1000 * token, Burst: 1000 * token}, none)
	s.calm = true
	s.run(20 * time.Second)
	s.d.SetLimit(Limit{Rate: token, Burst: 10 * token}, s.now)
	s.due = 0
	s.run(21 * time.Second)
	if s.d.limit != s.d.goal {
		t.Errorf("a second after a limit of 1/s the clients have %.1f/s and %.1f tokens", float64(s.d.rates)/token, float64(s.d.tokens)/token)
	}
	s.oracle = &bucketOfEnvoy{Bucket: Bucket{Max: 10, Fill: 1, Interval: 1}, tokens: 10, at: 21}
	s.admitted = 0
	s.run(81 * time.Second)
	if s.over || s.admitted < 50 {
		t.Errorf("in the minute after that %d pass, over %t; want about 70", s.admitted, s.over)
	}
}

func TestALimitThatChangesAgainAndAgainIsKept(t *testing.T) {
	t.Parallel()
	changes := 0
	for seed := range uint64(60) {
		s := newSchedule(seed, 4, Limit{Rate: 100 * token, Burst: 100 * token}, none)
		for at := tick; at <= 100*time.Second && !s.over; at += tick {
			if s.random.IntN(1000) == 0 {
				s.d.SetLimit(Limit{s.random.Int64N(1 << s.random.IntN(40)), s.random.Int64N(400) * token}, s.now)
				s.due = 0
				changes++
			}
			s.run(at)
			if l := s.d.limit; l.Rate < s.d.rates || l.Burst < s.d.tokens+s.d.level {
				t.Fatalf("seed %d: %+v, and clients have %d and %d beside the level of %d", seed, l, s.d.rates, s.d.tokens, s.d.level)
			}
			s.oracle.fill(s.now.Seconds()) // by the limit until now
			s.oracle.Bucket = Bucket{Max: uint32((s.d.limit.Burst + token - 1) / token), Fill: uint32(s.d.limit.Rate/1000 + 1), Interval: 1_000_000}
		}
		if s.over {
			t.Errorf("seed %d: an interval has more than the limits", seed)
		}
	}
	t.Logf("%d changes", changes)
}

func TestAnIdleClientLosesItsBucketAndMayComeAgain(t *testing.T) {
	t.Parallel()
	s := newSchedule(4, 1, Limit{Rate: 10 * token, Burst: 10 * token}, none)
	s.calm = true
	s.envoys[0].rate = 1
	s.run(20 * time.Second)
	s.envoys[0].rate = 0
	s.run(11 * time.Minute)
	if !s.d.Empty() || s.envoys[0].known {
		t.Errorf("after %v without a request the bucket is there", Idle)
	}
}

func TestLimitsThatCannotBeDividedAreRefused(t *testing.T) {
	t.Parallel()
	for _, l := range []algorithms.Limit{
		{Algorithm: algorithms.SlidingWindowLog, Requests: 1, Period: time.Second},
		{Algorithm: algorithms.TokenBucket, Requests: MostHits + 1, Period: time.Second},
		{Algorithm: algorithms.FixedWindow, Requests: 10, Period: 100 * time.Millisecond},
	} {
		if got, err := LimitOf(l); err == nil {
			t.Errorf("%+v is divided as %+v", l, got)
		}
	}
	if got, err := LimitOf(algorithms.Limit{Algorithm: algorithms.TokenBucket, Period: time.Second}); err != nil || got != (Limit{}) {
		t.Errorf("a ban is divided as %+v, %v", got, err)
	}
}

func BenchmarkStep(b *testing.B) {
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			d := New(Limit{Rate: 1000 * token, Burst: 1000 * token}, 0)
			for range clients {
				d.Join(0, nil)
			}
			orders := make([]Order, 0, 2*clients)
			now := time.Duration(0)
			b.ReportAllocs()
			for b.Loop() {
				now += 5 * time.Second / time.Duration(clients)
				orders, _ = d.Step(now, orders[:0])
				for _, o := range orders {
					d.Acknowledge(o.Client, o.Seq, now)
				}
			}
		})
	}
}

func TestAClientThatIsGoneWithoutABucketIsForgottenAtOnce(t *testing.T) {
	t.Parallel()
	d := New(Limit{Rate: 3 * token, Burst: 3 * token}, 0)
	for i := range 1000 {
		c := d.Join(0, nil)
		d.Step(0, nil)
		d.Leave(c)
		d.Step(0, nil)
		if most := min(i+1, 3); d.Clients() > most { // the ones with a token, until it has expired
			t.Fatalf("after %d clients: %d are left; want at most %d", i+1, d.Clients(), most)
		}
	}
	if d.Step(expiry, nil); !d.Empty() {
		t.Errorf("%d clients are left after their buckets have expired", d.Clients())
	}
}
