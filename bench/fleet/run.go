package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
)

const (
	sidecars = 4
	// maxDrift is how far the wall clock may be corrected during a run.
	maxDrift = 50 * time.Millisecond
)

// result is a run of a scenario.
type result struct {
	verdict

	crowd   int           // of holds: requests in flight above the limits
	long    time.Duration // the same: for how long
	why     map[string]int
	names   []string // of the keys
	missing int      // hits of a limit of a day that were admitted, and that Redis does not count at the end
	shares  figures
	alarms  []string // of metrics that contradict the clients
}

// course is how a scenario is run.
type course struct {
	programs programs
	args     []string      // of each sidecar
	calm     time.Duration // before the fault: each sidecar is asked about each key then
	lasts    time.Duration // of the fault
	watched  time.Duration // how long the clients go on after the fault
	scale    float64       // of limits and requests
	timeout  time.Duration // each request says that its caller waits for that long; 0: nothing
}

// figures are metrics of all sidecars together. A sidecar that was replaced takes its part away.
type figures struct {
	without, leased float64 // charges decided without Redis, and from a lease
}

// measure runs a scenario.
func measure(ctx context.Context, s scenario, c course) (r result, err error) {
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if s.known {
		c.calm = max(c.calm, 12*time.Second)
	}
	clients, rules, err := s.clients(&c)
	if err != nil {
		return r, err
	}
	f, err := startFleet(ctx, setup{
		programs: c.programs, topology: s.topology, sidecars: sidecars, rules: rules, dir: dir,
		args: slices.Concat(c.args, s.args), away: s.away, redis: s.redis,
	})
	defer f.close()
	if err != nil {
		return r, err
	}
	opened, err := f.metrics(ctx, "weir_store_opened_total")
	if err != nil {
		return r, err
	}
	wall, begun := time.Now().Round(0), time.Now()
	var o outage
	faulty := make(chan error, 1)
	go func() {
		var err error
		o, err = s.happen(ctx, f, &c)
		faulty <- err
	}()
	truth := clients(ctx, f, begun, &r)
	if err := errors.Join(<-faulty, context.Cause(ctx)); err != nil {
		return r, err
	}
	if drift := time.Now().Round(0).Sub(wall) - time.Since(begun); drift.Abs() > maxDrift {
		return r, fmt.Errorf("the clock of this machine was set, by %v: nothing can be said", drift)
	}
	r.verdict = judge(truth.limits, truth.run, o, c.timeout)
	if err := f.awaitRedis(ctx); err != nil {
		return r, err
	}
	seen := seen{verdict: r.verdict, quiet: s.fault == nil, away: s.outage && c.lasts >= sureOutage, replaced: f.replaced}
	for _, n := range opened {
		seen.opened += int(n)
	}
	return r, errors.Join(r.readMetrics(ctx, f, &seen), r.count(ctx, f, &truth))
}

// happen lets the fault happen, and returns when. Of a fault that is always there it returns
// nothing.
func (s *scenario) happen(ctx context.Context, f *fleet, c *course) (o outage, err error) {
	lasts := c.lasts
	switch {
	case s.fault == nil:
		return o, nil
	case s.always:
		return o, s.fault(ctx, f, c.calm+lasts+c.watched)
	case s.away:
		lasts += c.calm
	default:
		drive.Pause(ctx, c.calm)
	}
	o.began = time.Now()
	err = s.fault(ctx, f, lasts)
	o.ended = time.Now()
	return o, err
}

// truth is a run as the clients saw it.
type truth struct {
	limits  []algorithms.Limit
	run     []exchange
	partly  key // with a limit that was not reached; without a name: no such key
	counted int // admitted hits of partly
}

// clients returns the load of a scenario, and the rules for it.
func (s *scenario) clients(of *course) (func(context.Context, *fleet, time.Time, *result) truth, string, error) {
	length := of.calm + of.lasts + of.watched
	if s.holds > 0 {
		h := &holding{s.holds, length, of.timeout}
		return h.run, h.rules(), nil
	}
	p, err := newPlan(length, of.scale, cmp.Or(s.times, 1), s.several)
	if err != nil {
		return nil, "", err
	}
	return func(ctx context.Context, f *fleet, begun time.Time, r *result) truth {
		schedule := p.schedule(len(f.address), s.load)
		runs := make([][]exchange, len(schedule))
		var clients sync.WaitGroup
		var mu sync.Mutex
		for i := range schedule {
			c := &client{address: f.address[i], begun: begun, timeout: of.timeout, charged: p.charged}
			clients.Go(func() {
				runs[i] = c.run(ctx, p.encoded, schedule[i])
				mu.Lock()
				defer mu.Unlock()
				r.blame(c.why)
			})
		}
		clients.Wait()
		for _, k := range p.keys {
			r.names = append(r.names, k.name)
		}
		t := truth{limits: p.limits(), run: slices.Concat(runs...), partly: p.keys[p.partly]}
		for _, e := range t.run {
			if e.outcome == allowed && e.keys[0] == p.partly {
				t.counted++
			}
		}
		return t
	}, p.rules(), nil
}

// blame adds errors by their text.
func (r *result) blame(why map[string]int) {
	if r.why == nil {
		r.why = make(map[string]int)
	}
	for text, n := range maps.All(why) {
		r.why[text] += n
	}
}

// count compares the hits of a limit of a day with the count in Redis, once the sidecars owe Redis
// no hits. For a time after an outage the first sidecar answers without the hits that others told
// Redis. So count asks again while hits are missing.
func (r *result) count(ctx context.Context, f *fleet, t *truth) error {
	if t.partly.name == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for owed := 1.0; owed > 0; {
		all, err := f.metrics(ctx, "weir_store_owed_keys")
		if err != nil {
			return err
		}
		owed = 0
		for _, keys := range all {
			owed += keys
		}
		if owed > 0 && !drive.Pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("the sidecars owe Redis hits of %.0f keys: %w", owed, ctx.Err())
		}
	}
	for until := time.Now().Add(longest); ; {
		left, err := f.left(ctx, t.partly.name)
		r.missing = t.counted - (int(t.partly.limit.Requests) - left)
		if err != nil || r.missing <= 0 || time.Now().After(until) || !drive.Pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// readMetrics compares the metrics of the sidecars with the truth of the clients.
func (r *result) readMetrics(ctx context.Context, f *fleet, s *seen) error {
	var all []drive.Metrics
	for i := range f.address {
		m, err := drive.ReadMetrics(ctx, f.sidecar(i).HTTP)
		if err != nil {
			return err
		}
		all = append(all, m)
		r.shares.without += m.Sum("weir_store_fallback_decisions_total")
		r.shares.leased += m.Sum("weir_store_leased_decisions_total")
	}
	r.alarms = falseAlarms(all, s)
	return nil
}
