package page

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Steps and bounds of the history.
const (
	history    = 15 * time.Minute // that the page shows
	idleStep   = 5 * time.Second  // between samples while nobody looks
	liveStep   = time.Second      // between samples while somebody looks
	curveStep  = 15 * time.Second // between the points of the curve of a rule
	curveSteps = int(history / curveStep)
	maxCurves  = 1000         // rules with a curve; of others only the rates show
	maxRows    = 100          // rules that the page lists
	early      = liveStep / 4 // timers are not exact
	slowness   = 50           // reading the rules may take this part of the time: 1 in so many
)

// sample is the counters at one moment.
type sample struct {
	is *adminv1.StatusResponse
	at time.Time // zero before the first
}

// sampler keeps the rates of the last 15 minutes, in steps of five seconds. The sampler reads a few
// counters every five seconds, and every second while somebody looks.
type sampler struct {
	status func(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error)
	all    func() iter.Seq[Rule]
	wake   chan struct{} // somebody looks

	mu      sync.Mutex // guards all below
	viewers int
	points  []point // one each idleStep
	base    sample  // of the last point
	before  sample
	rules   map[any]*curve
	rulesAt time.Time // of the last reading of rules
	curveAt time.Time // of the last point of the curves
	pause   time.Duration
	number  int           // rules in force
	last    int           // number of the newest curve
	full    bool          // each curve has traffic
	live    []byte        // the last state, as JSON
	next    chan struct{} // closed when live changes
}

// curve is a rule with its rates.
type curve struct {
	rule   Rule
	seen   time.Time // in force at this instant
	number int       // names the rule on the page
	now    Tally
	then   Tally // at the last point

	passed, denied, shadowed float64   // per second, between the last two readings
	points                   []float32 // passed and denied per second, in turns, the oldest first; denied ones in shadow mode are denied here
}

func newSampler(service adminv1.AdminServiceServer, rules func() iter.Seq[Rule]) *sampler {
	return &sampler{
		status: service.Status, all: rules, wake: make(chan struct{}, 1), rules: make(map[any]*curve), next: make(chan struct{}),
	}
}

// run samples until ctx ends.
func (s *sampler) run(ctx context.Context) {
	for {
		s.sample(ctx, time.Now())
		timer := time.NewTimer(s.wait())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-s.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (s *sampler) wait() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.viewers > 0 {
		return liveStep
	}
	return max(time.Until(s.base.at.Add(idleStep)), liveStep)
}

// look notes one more viewer. The caller must call the result once.
func (s *sampler) look() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.viewers++; s.viewers == 1 {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.viewers--
	}
}

// now returns the last state as JSON, which is nil before the first sample, and a channel that is
// closed when there is another.
func (s *sampler) now() (live []byte, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live, s.next
}

// past returns the points of the history, and the curves by the number of the rule, as JSON.
func (s *sampler) past() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.Marshal(struct {
		Points []point           `json:"points"`
		Curves map[int][]float32 `json:"curves"`
		Step   float64           `json:"step"` // seconds between points of a curve
	}{s.points, s.curvesLocked(), curveStep.Seconds()})
}

func (s *sampler) curvesLocked() map[int][]float32 {
	all := make(map[int][]float32)
	for _, c := range s.rules {
		if len(c.points) > 0 {
			all[c.number] = c.points
		}
	}
	return all
}

func (s *sampler) sample(ctx context.Context, now time.Time) {
	status, err := s.status(ctx, new(adminv1.StatusRequest))
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.before.at.IsZero() && now.Sub(s.before.at) < liveStep/2 { // somebody has just come
		if s.live == nil {
			s.showLocked(now, status, point{At: now.UnixMilli()})
		}
		return
	}
	var p point
	fresh := sample{status, now}
	if s.before.at.IsZero() {
		p.At = now.UnixMilli()
		s.base = fresh
	} else {
		p = between(s.before, fresh)
	}
	if now.Sub(s.base.at) >= idleStep-early {
		s.points = append(since(s.points, now.Add(-history)), between(s.base, fresh))
		s.base = fresh
	}
	s.readRulesLocked(now)
	if s.viewers > 0 {
		s.showLocked(now, status, p)
	} else {
		s.live = nil // old by the time that somebody comes
	}
	s.before = fresh
}

// readRulesLocked reads the counts of the rules: while somebody looks at each sample, else for each
// point of the curves. Many rules are read less often.
func (s *sampler) readRulesLocked(now time.Time) {
	step := curveStep
	if s.viewers > 0 {
		step = liveStep
	}
	if s.all == nil || !s.rulesAt.IsZero() && now.Sub(s.rulesAt) < max(step, s.pause)-early {
		return
	}
	begun, passed, first := time.Now(), now.Sub(s.rulesAt), s.rulesAt.IsZero()
	s.number = 0
	for r := range s.all() {
		s.number++
		id, tally := r.ID, r.Tally
		c := s.rules[id]
		if c == nil {
			if c = s.newCurveLocked(id, tally); c == nil {
				continue
			}
			if first {
				c.now, c.then = tally, tally
			}
		}
		c.rule, c.seen = r, now
		if !first {
			c.passed = rate(tally.Passed, c.now.Passed, passed)
			c.denied = rate(tally.Denied, c.now.Denied, passed)
			c.shadowed = rate(tally.Shadowed, c.now.Shadowed, passed)
		}
		c.now = tally
	}
	for id, c := range s.rules {
		if c.seen != now { // no longer in force
			s.dropLocked(id)
		}
	}
	if first {
		s.curveAt = now
	}
	if passed := now.Sub(s.curveAt); passed >= curveStep-early {
		for _, c := range s.rules {
			c.point(passed)
		}
		s.curveAt = now
	}
	s.rulesAt, s.pause = now, slowness*time.Since(begun)
}

// newCurveLocked returns a curve for a rule, nil without room. Rules without traffic give way to
// others, and are kept only while they fill the list.
func (s *sampler) newCurveLocked(id any, tally Tally) *curve {
	c := new(curve)
	if len(s.rules) >= maxCurves {
		idle := s.idleLocked()
		if tally.sum() == 0 || idle == nil {
			return nil
		}
		s.dropLocked(idle)
	} else if tally.sum() == 0 && len(s.rules) >= maxRows {
		return nil
	}
	s.last++
	c.number = s.last
	s.rules[id] = c
	return c
}

// idleLocked returns the id of a rule without traffic, nil without one.
func (s *sampler) idleLocked() any {
	if s.full {
		return nil
	}
	for id, c := range s.rules {
		if c.now.sum() == 0 {
			return id
		}
	}
	s.full = true // until a rule goes
	return nil
}

func (s *sampler) dropLocked(id any) {
	delete(s.rules, id)
	s.full = false
}

func (c *curve) point(passed time.Duration) {
	c.points = append(c.points, float32(rate(c.now.Passed, c.then.Passed, passed)),
		float32(rate(c.now.Denied+c.now.Shadowed, c.then.Denied+c.then.Shadowed, passed)))
	c.then = c.now
	if extra := len(c.points) - 2*curveSteps; extra > 0 {
		c.points = slices.Delete(c.points, 0, extra)
	}
}

// row is a rule as the page lists it.
type row struct {
	About

	ID       int     `json:"id"`
	Passed   float64 `json:"ok"` // per second, as the next two
	Denied   float64 `json:"no"`
	Shadowed float64 `json:"shadow"`
	Total    uint64  `json:"total"`  // decisions since the start
	Refused  uint64  `json:"denied"` // denials since the start
}

// state is all that the page shows, without curves.
type state struct {
	Point     point   `json:"point"`     // since the state before
	Newest    point   `json:"newest"`    // of the history; zero before the first
	Unmatched float64 `json:"unmatched"` // descriptors per second, as the next
	NoDomain  float64 `json:"noDomain"`
	StoreP99  float64 `json:"storeP99"` // of the answers of Redis in seconds, over the last step
	Rules     []row   `json:"rules"`
	Number    int     `json:"number"` // of all rules

	Status json.RawMessage `json:"status"` // a StatusResponse
}

// showLocked puts the state for viewers in place.
func (s *sampler) showLocked(now time.Time, status *adminv1.StatusResponse, p point) {
	step := now.Sub(s.before.at)
	if s.before.at.IsZero() {
		step = 0
	}
	data, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(status)
	if err != nil { // no text of a status can fail
		return
	}
	var newest point
	if n := len(s.points); n > 0 {
		newest = s.points[n-1]
	}
	before, requests := s.before.is.GetRequests(), status.GetRequests()
	live, err := json.Marshal(state{
		Point: p, Newest: newest, Status: data, Rules: s.rowsLocked(), Number: s.number,
		Unmatched: rate(requests.GetUnmatched(), before.GetUnmatched(), step),
		NoDomain:  rate(requests.GetNoDomain(), before.GetNoDomain(), step),
		StoreP99:  quantile(s.before.is.GetStore().GetLatency(), status.GetStore().GetLatency(), 0.99),
	})
	if err != nil { // no value of a state can fail
		return
	}
	s.live = live
	close(s.next)
	s.next = make(chan struct{})
}

// rowsLocked returns the rules with the most denials, and then the most requests.
func (s *sampler) rowsLocked() []row {
	all := make([]*curve, 0, len(s.rules))
	for _, c := range s.rules {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *curve) int {
		return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(b.passed, a.passed),
			cmp.Compare(b.now.sum(), a.now.sum()), cmp.Compare(a.number, b.number))
	})
	rows := make([]row, 0, min(len(all), maxRows))
	for _, c := range all[:min(len(all), maxRows)] {
		rows = append(rows, row{
			About: c.rule.About(), ID: c.number, Passed: c.passed, Denied: c.denied, Shadowed: c.shadowed, Total: c.now.sum(), Refused: c.now.Denied,
		})
	}
	return rows
}
