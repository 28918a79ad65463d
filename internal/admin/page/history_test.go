package page

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// counters is a service whose counts a test sets.
type counters struct {
	adminv1.UnimplementedAdminServiceServer

	requests *adminv1.RequestsStatus
	rules    []*Rule
	reads    atomic.Uint64 // of the status
}

func (c *counters) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	c.reads.Add(1)
	return &adminv1.StatusResponse{Requests: proto.CloneOf(c.requests), Store: new(adminv1.StoreStatus), Loads: new(adminv1.RulesPage)}, nil
}

func (c *counters) sampler() *sampler { return newSampler(c, c.all) }

func (c *counters) all() iter.Seq[Rule] {
	return func(yield func(Rule) bool) {
		for _, r := range c.rules {
			if !yield(*r) {
				return
			}
		}
	}
}

// newRule returns a rule, which is its own ID.
func newRule(name string, passed uint64) *Rule {
	r := &Rule{Tally: Tally{Passed: passed}, About: func() About { return About{Domain: "d", Path: name, Limits: []string{}} }}
	r.ID = r
	return r
}

// decoded returns the state, the points and the curves of a viewer.
func (s *sampler) decoded(t *testing.T) (now state, points []point, curves map[string][]float64) {
	t.Helper()
	live, _ := s.now()
	if live != nil {
		if err := json.Unmarshal(live, &now); err != nil {
			t.Fatal(err)
		}
	}
	past, err := s.past()
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Points []point              `json:"points"`
		Curves map[string][]float64 `json:"curves"`
	}
	if err := json.Unmarshal(past, &all); err != nil {
		t.Fatal(err)
	}
	return now, all.Points, all.Curves
}

func TestRatesAreTheDifferenceOfTwoSamples(t *testing.T) {
	c := &counters{rules: []*Rule{newRule("a", 0), newRule("b", 0)}}
	s := c.sampler()
	defer s.look()()
	at := time.Unix(1_800_000_000, 0)
	s.sample(t.Context(), at)
	c.requests = &adminv1.RequestsStatus{Passed: 30, Denied: 10, Failed: 2, Unmatched: 4, NoDomain: 6}
	c.rules[1].Tally = Tally{Passed: 5, Denied: 20, Shadowed: 1}
	s.sample(t.Context(), at.Add(2*time.Second))
	now, points, _ := s.decoded(t)
	if p := now.Point; p.Passed != 15 || p.Denied != 5 || p.Failed != 1 || now.Unmatched != 2 || now.NoDomain != 3 {
		t.Errorf("state: %+v", now)
	}
	if len(points) != 0 {
		t.Errorf("points of less than five seconds: %+v", points)
	}
	if len(now.Rules) != 2 || now.Rules[0].Path != "b" || now.Rules[0].Denied != 10 || now.Rules[0].Passed != 2.5 || now.Rules[0].Shadowed != 0.5 {
		t.Errorf("rules: the one with denials must be first: %+v", now.Rules)
	}
}

// A viewer brings a state each second, and the history goes on in the steps of before.
func TestTheHistoryHasOneGrainWithAndWithoutViewers(t *testing.T) {
	c := &counters{requests: &adminv1.RequestsStatus{Latency: &adminv1.Latency{Bounds: []float64{0.001, 0.002}, Counts: []uint64{0, 0, 0}}}}
	s := c.sampler()
	at := time.Unix(1_800_000_000, 0)
	step := func(passed time.Duration, times float64) {
		at = at.Add(passed)
		c.requests.Passed += uint64(passed.Seconds() * times)
		c.requests.Latency.Counts[0] += uint64(passed.Seconds() * times)
		c.requests.Latency.Counts[1] += uint64(passed.Seconds() * times)
		c.requests.Latency.Counts[2] += uint64(passed.Seconds() * times)
		s.sample(t.Context(), at)
	}
	for range 4 {
		step(idleStep, 10)
	}
	leave := s.look()
	for i := range 20 { // a burst each five seconds
		step(liveStep, []float64{50, 0, 0, 0, 0}[i%5])
		now, points, _ := s.decoded(t)
		if want := []float64{50, 0, 0, 0, 0}[i%5]; now.Point.Passed != want {
			t.Errorf("second %d: the state has %v/s, want %v", i, now.Point.Passed, want)
		}
		if last := points[len(points)-1]; now.Newest != last {
			t.Errorf("second %d: the newest point is %+v, want %+v", i, now.Newest, last)
		}
	}
	leave()
	for range 4 {
		step(idleStep, 10)
	}
	_, points, _ := s.decoded(t)
	for i, p := range points {
		if p.Passed != 10 || p.P99 != 0.00099 || i > 0 && p.At-points[i-1].At != idleStep.Milliseconds() {
			t.Errorf("point %d: %+v; want 10/s, within 0.99 ms, five seconds after the one before", i, p)
		}
	}
	if len(points) != 11 {
		t.Errorf("%d points, want 11", len(points))
	}
}

func TestTheHistoryIsFifteenMinutes(t *testing.T) {
	c := &counters{rules: []*Rule{newRule("a", 1)}, requests: new(adminv1.RequestsStatus)}
	s := c.sampler()
	at := time.Unix(1_800_000_000, 0)
	for i := range 3 * 720 { // three hours
		c.requests.Passed += 50
		c.rules[0].Tally.Passed += 50
		s.sample(t.Context(), at.Add(time.Duration(i)*idleStep))
	}
	_, points, curves := s.decoded(t)
	if len(points) != 181 || points[0].Passed != 10 {
		t.Errorf("%d points, the first %+v; want one each 5 s with both ends, of 10/s", len(points), points[0])
	}
	for number, curve := range curves {
		if len(curve) != 2*curveSteps || curve[0] != 10 || curve[1] != 0 {
			t.Errorf("curve %s has %d numbers %v…; want %d of 10/s", number, len(curve), curve[:2], 2*curveSteps)
		}
	}
	if cap(s.points) > 400 {
		t.Errorf("the memory of the points grows: room for %d", cap(s.points))
	}
}

func TestCurvesAreBoundedAndGoToRulesWithTraffic(t *testing.T) {
	c := new(counters)
	for i := range 3 * maxCurves {
		c.rules = append(c.rules, newRule(fmt.Sprint(i), 0))
	}
	s := c.sampler()
	defer s.look()()
	at := time.Unix(1_800_000_000, 0)
	s.sample(t.Context(), at)
	if len(s.rules) != maxRows {
		t.Errorf("%d curves of idle rules, want %d", len(s.rules), maxRows)
	}
	for _, r := range c.rules[maxCurves:] {
		r.Tally.Passed = 1
	}
	last := c.rules[len(c.rules)-1]
	s.sample(t.Context(), at.Add(time.Minute))
	if len(s.rules) != maxCurves {
		t.Errorf("%d curves, want %d", len(s.rules), maxCurves)
	}
	for id := range s.rules {
		if r, _ := id.(*Rule); r.Tally.Passed == 0 {
			t.Errorf("the idle rule %s keeps a place", r.About().Path)
		}
	}
	c.rules = []*Rule{last}
	s.sample(t.Context(), at.Add(2*time.Minute)) // frees the places of rules that are gone
	s.sample(t.Context(), at.Add(3*time.Minute))
	if now, _, _ := s.decoded(t); len(s.rules) != 1 || now.Number != 1 || now.Rules[0].Path != last.About().Path {
		t.Errorf("after a reload: %d curves, state %+v", len(s.rules), now)
	}
}

func TestSamplesComeEachSecondWhileSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(counters)
		s := c.sampler()
		go s.run(t.Context())
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := c.reads.Load(); n != 13 {
			t.Errorf("%d samples in a minute while nobody looks, want 13", n)
		}
		leave := s.look()
		c.reads.Store(0)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n := c.reads.Load(); n < 30 || n > 31 {
			t.Errorf("%d samples in 30 s while somebody looks, want 30", n)
		}
		leave()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if live, _ := s.now(); live != nil {
			t.Error("an old state is kept for the next viewer")
		}
	})
}

func TestQuantilesAreOfTheTimeBetween(t *testing.T) {
	l := func(counts ...uint64) *adminv1.Latency {
		return &adminv1.Latency{Bounds: []float64{0.001, 0.002, 0.01}, Counts: counts}
	}
	for name, test := range map[string]struct {
		before, now *adminv1.Latency
		q, want     float64
	}{
		"no requests":            {l(1, 2, 3, 3), l(1, 2, 3, 3), 0.5, 0},
		"all in one bucket":      {l(0, 0, 0, 0), l(0, 100, 100, 100), 0.5, 0.0015},
		"the first is left out":  {l(100, 100, 100, 100), l(100, 100, 200, 200), 0.99, 0.00992},
		"beyond the last":        {l(0, 0, 0, 0), l(0, 0, 0, 10), 0.99, 0.01},
		"nothing before":         {nil, l(10, 10, 10, 10), 0.5, 0.0005},
		"no buckets":             {nil, nil, 0.5, 0},
		"a counter that is less": {l(50, 50, 50, 50), l(10, 10, 10, 10), 0.5, 0.0005},
	} {
		if got := quantile(test.before, test.now, test.q); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// A service with many rules spends at most a fiftieth of the time on reading them.
func TestManyRulesAreReadLessOften(t *testing.T) {
	c := &counters{rules: []*Rule{newRule("a", 0)}}
	reads := 0
	s := newSampler(c, func() iter.Seq[Rule] { reads++; return c.all() })
	defer s.look()()
	at := time.Unix(1_800_000_000, 0)
	s.sample(t.Context(), at)
	s.pause = 10 * time.Second // as after a reading of 200 ms
	for i := range 9 {
		s.sample(t.Context(), at.Add(time.Duration(i+1)*time.Second))
	}
	if reads != 1 {
		t.Errorf("%d readings in 9 s, want 1", reads)
	}
	if s.sample(t.Context(), at.Add(10*time.Second)); reads != 2 {
		t.Errorf("%d readings in 10 s, want 2", reads)
	}
}
