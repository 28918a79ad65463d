package quota

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// limitsMixed has limits of which hits count for longer than a division that ends.
var limitsMixed = append(slices.Clip(limitsTested), []struct {
	limit  algorithms.Limit
	envoys int
}{
	{algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 600, Period: 100 * time.Second}, 3},
	{algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 5, Period: time.Second, Extra: algorithms.Extra{Burst: 500}}, 3},
}...)

// countModel is the count of requests of RLS, in true time: a window, or a bucket.
type countModel struct {
	bucketOfEnvoy

	window time.Duration // 0: a bucket
	began  time.Duration
	used   int64
}

func (c *countModel) turn(now time.Duration) {
	if c.window > 0 && now >= c.began+c.window {
		c.began, c.used = now/c.window*c.window, 0
	}
	c.fill(now.Seconds())
}

func (c *countModel) left(now time.Duration) Left {
	if c.turn(now); c.window > 0 {
		return Left{Hits: uint64(int64(c.Max) - c.used), Used: c.used > 0, Window: c.began + c.window - now}
	}
	return Left{Hits: uint64(max(c.tokens, 0)), Used: c.tokens < float64(c.Max)}
}

func (c *countModel) spend(hits int64, now time.Duration) {
	c.turn(now)
	c.used += hits
	c.tokens -= float64(hits)
}

func (c *countModel) take(now time.Duration) bool {
	if c.left(now).Hits == 0 {
		return false
	}
	c.spend(1, now)
	return true
}

// everything is the rule of requests without a division.
func everything() *bucketOfEnvoy {
	return &bucketOfEnvoy{Bucket: Bucket{Max: math.MaxUint32, Fill: math.MaxUint32, Interval: 1}, tokens: math.MaxUint32}
}

// couldOwn returns the requests of RLS that could pass at this instant.
func (s *schedule) couldOwn() float64 {
	s.count.turn(s.now)
	return max(min(s.count.tokens, s.tokensOf(s.own)), 0)
}

// mixed returns a schedule with requests of RLS beside the Envoys.
func mixed(t *testing.T, number int, m mistake) (s *schedule, lasts time.Duration) {
	t.Helper()
	seed, l, envoys := uint64(number), limitsMixed[number%len(limitsMixed)].limit, limitsMixed[number%len(limitsMixed)].envoys
	of := must.Get(LimitOf(l))(t)
	s = newSchedule(seed, envoys, of, m)
	s.d, s.limit = nil, of
	s.own = &envoyModel{clock: 1, workers: make([]worker, 3), rate: []float64{0, 30, 3000}[seed%3]}
	s.count = &countModel{bucketOfEnvoy: bucketOfEnvoy{Bucket: Bucket{Max: uint32(l.Capacity()), Fill: l.Requests, Interval: 1}}}
	s.count.Fill, s.count.Interval = l.Requests*1000, uint32(l.Period/time.Second)*1000
	s.count.tokens = float64(s.count.Max)
	if l.Algorithm == algorithms.FixedWindow {
		s.count.window, s.window, s.perWin = l.Period, l.Period, int64(l.Requests)
	}
	for i := range s.own.workers {
		s.own.workers[i].rule = everything()
	}
	if seed%3 == 0 { // whole divisions come and go
		s.leaves = 8000
	}
	return s, 200 * time.Second
}

// begin makes a division as the service does.
func (s *schedule) begin() bool {
	start, ok := Begin(s.limit, []Left{s.count.left(s.now)})
	if !ok {
		return false
	}
	s.count.spend(start.Spend[0], s.now)
	if s.mistake == oldForgotten {
		start.level, start.taken = s.limit.Burst, 0
		s.count.spend(-start.Spend[0], s.now)
	}
	for _, e := range s.envoys {
		e.client = nil // of an earlier division
	}
	s.first, s.spent, s.back = s.now+start.Until, start.Spend, s.now+Settle
	s.d, s.own.client = NewBeside(start, s.now, s.own)
	return true
}

// divideBeside does all for requests of RLS that is due.
func (s *schedule) divideBeside() {
	if s.d == nil {
		return
	}
	if s.leaves > 0 && s.random.IntN(s.leaves) == 0 {
		for _, e := range s.envoys {
			s.die(e)
			e.away = s.now + 45*time.Second
		}
	}
	asked := s.own.allowed + s.own.denied
	s.own.allowed, s.own.denied = 0, 0
	if s.d.Asked(s.own.client, asked, s.now) {
		s.due = s.now
	}
	if s.now >= s.first {
		s.d.SetLimit(s.limit, s.now)
	}
	if s.back > 0 && s.now >= s.back {
		if s.back = 0; s.count.window == 0 || s.now < s.first {
			s.count.spend(-s.spent[0], s.now)
		}
	}
	if s.back == 0 && s.d.Full(s.now) {
		if s.mistake != lostAtTheEnd {
			s.count.spend(s.d.End([]Left{s.count.left(s.now)}, s.now)[0], s.now)
		}
		s.d = nil
		s.own.put(s, everything())
	}
}

// takeOwn puts an order for the own client in force: a bucket of its own.
func (s *schedule) takeOwn(o Order) {
	var b *bucketOfEnvoy
	if o.Bucket.Max > 0 {
		b = &bucketOfEnvoy{Bucket: o.Bucket, tokens: float64(o.Bucket.Max), at: s.now.Seconds()}
	}
	if o.Empty {
		b.tokens = 0
	}
	s.own.put(s, b)
	s.due = min(s.due, s.d.Acknowledge(o.Client, o.Seq, s.now))
	switch {
	case s.mistake == ownGrowsEarly:
		s.d.put(o.Client, o.Client.bucket, given{})
		o.Client.change = false
	case s.mistake == ownNotDebited && o.Bucket.Max > 0 && !o.Empty:
		s.d.level += o.Bucket.tokens()
	}
}

func TestTwoWaysToCountTogetherNeverHaveMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	testNone(t, mixed, 120)
}

func TestTheOracleFindsEachMistakeOfTheOwnClient(t *testing.T) {
	t.Parallel()
	testMistakes(t, mixed, ownMistakes, 480)
}

var ownMistakes = map[string]mistake{
	"own client not debited": ownNotDebited, "growth before the own client has shrunk": ownGrowsEarly,
	"requests from before the division forgotten": oldForgotten, "hits of Envoys lost at the end": lostAtTheEnd,
}
