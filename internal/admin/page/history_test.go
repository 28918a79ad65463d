package page

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counters is a source whose counts a test sets.
type counters struct {
	totals Totals
	rules  []*rule
}

type rule struct {
	name  string
	tally Tally
}

func (r *rule) ID() any      { return r }
func (r *rule) Tally() Tally { return r.tally }
func (r *rule) About() About { return About{Domain: "d", Path: r.name, Limits: []string{}} }

func (c *counters) source() Source {
	return Source{
		Totals: func() Totals { return c.totals },
		Rules: func() iter.Seq[Rule] {
			return func(yield func(Rule) bool) {
				for _, r := range c.rules {
					if !yield(r) {
						return
					}
				}
			}
		},
	}
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
	c := &counters{rules: []*rule{{name: "a"}, {name: "b"}}}
	s := newSampler(c.source())
	defer s.look()()
	at := time.Unix(1_800_000_000, 0)
	s.sample(at)
	c.totals = Totals{Passed: 30, Denied: 10, Failed: 2, Unmatched: 4, NoDomain: 6}
	c.rules[1].tally = Tally{Passed: 5, Denied: 20, Shadowed: 1}
	s.sample(at.Add(2 * time.Second))
	now, points, _ := s.decoded(t)
	if p := now.Point; p.Passed != 15 || p.Denied != 5 || p.Failed != 1 || now.Unmatched != 2 || now.NoDomain != 3 || now.Total != 42 {
		t.Errorf("state: %+v", now)
	}
	if len(points) != 1 || points[0].At != at.Add(2*time.Second).UnixMilli() {
		t.Errorf("points: %+v", points)
	}
	if len(now.Rules) != 2 || now.Rules[0].Path != "b" || now.Rules[0].Denied != 10 || now.Rules[0].Passed != 2.5 || now.Rules[0].Shadowed != 0.5 {
		t.Errorf("rules: the one with denials must be first: %+v", now.Rules)
	}
}

func TestTheHistoryIsFifteenMinutes(t *testing.T) {
	c := &counters{rules: []*rule{{name: "a", tally: Tally{Passed: 1}}}}
	s := newSampler(c.source())
	at := time.Unix(1_800_000_000, 0)
	for i := range 3 * 720 { // three hours
		c.totals.Passed += 50
		c.rules[0].tally.Passed += 50
		s.sample(at.Add(time.Duration(i) * idleStep))
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
		c.rules = append(c.rules, &rule{name: fmt.Sprint(i)})
	}
	s := newSampler(c.source())
	defer s.look()()
	at := time.Unix(1_800_000_000, 0)
	s.sample(at)
	if len(s.rules) != maxRows {
		t.Errorf("%d curves of idle rules, want %d", len(s.rules), maxRows)
	}
	for _, r := range c.rules[maxCurves:] {
		r.tally.Passed = 1
	}
	last := c.rules[len(c.rules)-1]
	s.sample(at.Add(time.Minute))
	if len(s.rules) != maxCurves {
		t.Errorf("%d curves, want %d", len(s.rules), maxCurves)
	}
	for id := range s.rules {
		if r, _ := id.(*rule); r.tally.Passed == 0 {
			t.Errorf("the idle rule %s keeps a place", r.name)
		}
	}
	c.rules = []*rule{last}
	s.sample(at.Add(2 * time.Minute)) // frees the places of rules that are gone
	s.sample(at.Add(3 * time.Minute))
	if now, _, _ := s.decoded(t); len(s.rules) != 1 || now.Number != 1 || now.Rules[0].Path != last.name {
		t.Errorf("after a reload: %d curves, state %+v", len(s.rules), now)
	}
}

func TestSamplesComeEachSecondWhileSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Uint64
		source := new(counters).source()
		source.Totals = func() Totals { return Totals{Passed: reads.Add(1)} }
		s := newSampler(source)
		go s.run(t.Context())
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := reads.Load(); n != 13 {
			t.Errorf("%d samples in a minute while nobody looks, want 13", n)
		}
		leave := s.look()
		reads.Store(0)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n := reads.Load(); n < 30 || n > 31 {
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
	l := func(counts ...uint64) Latency { return Latency{Bounds: []float64{0.001, 0.002, 0.01}, Counts: counts} }
	for name, test := range map[string]struct {
		before, now Latency
		q, want     float64
	}{
		"no requests":            {l(1, 2, 3, 3), l(1, 2, 3, 3), 0.5, 0},
		"all in one bucket":      {l(0, 0, 0, 0), l(0, 100, 100, 100), 0.5, 0.0015},
		"the first is left out":  {l(100, 100, 100, 100), l(100, 100, 200, 200), 0.99, 0.00992},
		"beyond the last":        {l(0, 0, 0, 0), l(0, 0, 0, 10), 0.99, 0.01},
		"nothing before":         {Latency{}, l(10, 10, 10, 10), 0.5, 0.0005},
		"no buckets":             {Latency{}, Latency{}, 0.5, 0},
		"a counter that is less": {l(50, 50, 50, 50), l(10, 10, 10, 10), 0.5, 0.0005},
	} {
		if got := test.now.quantile(&test.before, test.q); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// A service with many rules spends at most a fiftieth of the time on reading them.
func TestManyRulesAreReadLessOften(t *testing.T) {
	c := &counters{rules: []*rule{{name: "a"}}}
	reads := 0
	source := c.source()
	all := source.Rules
	source.Rules = func() iter.Seq[Rule] { reads++; return all() }
	s := newSampler(source)
	defer s.look()()
	at := time.Unix(1_800_000_000, 0)
	s.sample(at)
	s.pause = 10 * time.Second // as after a reading of 200 ms
	for i := range 9 {
		s.sample(at.Add(time.Duration(i+1) * time.Second))
	}
	if reads != 1 {
		t.Errorf("%d readings in 9 s, want 1", reads)
	}
	if s.sample(at.Add(10 * time.Second)); reads != 2 {
		t.Errorf("%d readings in 10 s, want 2", reads)
	}
}
