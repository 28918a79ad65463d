package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/conformance/cases"
	"github.com/weirproxy/weir/conformance/internal/forms"
)

// An Outcome of a case.
type Outcome string

// The outcomes.
const (
	Pass   Outcome = "pass"
	Fail   Outcome = "fail"
	Cannot Outcome = "cannot" // the target cannot be asked: its rules or the run lack something
)

// A Result is the outcome of one case.
type Result struct {
	ID      string        `json:"id"`
	Claim   string        `json:"claim"`
	From    string        `json:"from"`
	Profile cases.Profile `json:"profile"`
	Outcome Outcome       `json:"outcome"`
	Reason  string        `json:"reason,omitempty"` // of a failure, or why the target cannot
	Took    time.Duration `json:"took_ns"`
}

// A Runner plays cases against one target. The methods are for one goroutine.
type Runner struct {
	Target   string   // host:port of a service that somebody else started
	Start    string   // the command line that starts the target; then Target has no meaning
	Form     string   // of the rules, see package forms
	Redis    string   // the program of Redis; empty means no Redis
	Features []string // of the target
	Skew     time.Duration
	Workers  int // cases at once
	Progress func(Result)
}

// attempts bounds how often a case is played whose requests came too late for their windows.
const attempts = 6

// caseTime bounds one attempt.
const caseTime = 60 * time.Second

// Run plays the chosen cases of the documents, and returns their results in the order of the cases.
func (r *Runner) Run(ctx context.Context, documents []*cases.Document, chosen func(*cases.Case) bool) ([]Result, error) {
	results := make(map[*cases.Case]Result)
	var shared, serial, alone []*cases.Case
	var all []*cases.Case
	for _, d := range documents {
		for i := range d.Cases {
			c := &d.Cases[i]
			if !chosen(c) {
				continue
			}
			all = append(all, c)
			switch reason := r.cannot(c); {
			case reason != "":
				results[c] = r.result(c, Cannot, reason, 0)
			case d.Alone:
				alone = append(alone, c)
			case d.Serial:
				serial = append(serial, c)
			default:
				shared = append(shared, c)
			}
		}
	}
	if err := r.runShared(ctx, documents, shared, serial, results); err != nil {
		return nil, err
	}
	r.runAlone(ctx, alone, results)
	var ordered []Result
	for _, c := range all {
		ordered = append(ordered, results[c])
	}
	return ordered, ctx.Err()
}

func (r *Runner) result(c *cases.Case, outcome Outcome, reason string, took time.Duration) Result {
	result := Result{ID: c.ID(), Claim: c.Claim, From: c.From, Profile: c.Profile, Outcome: outcome, Reason: reason, Took: took}
	if r.Progress != nil {
		r.Progress(result)
	}
	return result
}

// cannot returns why a case cannot be played, or nothing.
func (r *Runner) cannot(c *cases.Case) string {
	for _, feature := range c.Features() {
		if !slices.Contains(r.features(), feature) {
			return "needs " + feature
		}
	}
	if c.Document.Alone && r.Start == "" {
		return "needs " + cases.FeatureStart
	}
	if err := forms.CheckCase(r.Form, c); err != nil {
		return strings.TrimPrefix(err.Error(), forms.ErrCannot.Error()+": ")
	}
	for _, d := range c.Document.Domains {
		if d.Domain == c.Domain {
			if err := forms.Check(r.Form, d); err != nil {
				return strings.TrimPrefix(err.Error(), forms.ErrCannot.Error()+": ")
			}
		}
	}
	return ""
}

func (r *Runner) features() []string {
	all := slices.Clone(r.Features)
	if r.Start != "" {
		all = append(all, cases.FeatureStart)
	}
	if r.Redis != "" && r.Start != "" {
		all = append(all, cases.FeatureRedis)
	}
	return all
}

// Domains returns the domains of the documents whose cases share one target.
func Domains(documents []*cases.Document) []cases.Domain {
	var all []cases.Domain
	for _, d := range documents {
		if !d.Alone {
			all = append(all, d.Domains...)
		}
	}
	return all
}

// runShared plays cases on one target, and the serial ones after the others.
func (r *Runner) runShared(
	ctx context.Context, documents []*cases.Document, shared, serial []*cases.Case, results map[*cases.Case]Result,
) error {
	if len(shared)+len(serial) == 0 {
		return nil
	}
	t, err := r.startTarget(ctx, Domains(documents), false)
	if err != nil {
		return err
	}
	defer t.end()
	if err := t.awaitShared(ctx); err != nil {
		return err
	}
	var mu sync.Mutex
	work := make(chan *cases.Case)
	var group sync.WaitGroup
	for range max(1, r.Workers) {
		group.Go(func() {
			for c := range work {
				result := r.play(ctx, t, c)
				mu.Lock()
				results[c] = result
				mu.Unlock()
			}
		})
	}
	for _, c := range shared {
		work <- c
	}
	close(work)
	group.Wait()
	for _, c := range serial {
		result := r.play(ctx, t, c)
		if err := r.aftermath(ctx, t); err != nil && result.Outcome == Pass {
			result = r.result(c, Fail, "after the case: "+err.Error(), result.Took)
		} else if err != nil {
			result.Reason += "; after the case: " + err.Error()
		}
		results[c] = result
	}
	return nil
}

// awaitShared waits for the rules of a service that somebody else started.
func (t *target) awaitShared(ctx context.Context) error {
	if t.process != nil {
		return nil
	}
	t.version = 1
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := t.awaitRules(ctx); err != nil {
		return fmt.Errorf("%s does not serve the rules of the suite, see `rls-conformance rules`: %w", t.address, err)
	}
	return nil
}

// aftermath checks that a target still serves, and starts it again if its process has ended.
func (r *Runner) aftermath(ctx context.Context, t *target) error {
	if t.process != nil {
		// A process that is about to end may still have its port.
		select {
		case <-t.process.ended:
		case <-time.After(30 * time.Millisecond):
		}
		if err := t.revive(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return t.awaitRules(ctx)
}

// runAlone plays cases, each on a target of its own, a few at once.
func (r *Runner) runAlone(ctx context.Context, alone []*cases.Case, results map[*cases.Case]Result) {
	var mu sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, c := range alone {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			result := r.playAlone(ctx, c)
			mu.Lock()
			results[c] = result
			mu.Unlock()
		})
	}
	group.Wait()
}

func (r *Runner) playAlone(ctx context.Context, c *cases.Case) Result {
	var last Result
	for range attempts {
		domains := slices.Clone(c.Document.Domains)
		for i := range domains {
			domains[i].Rules = maps.Clone(domains[i].Rules)
		}
		t, err := r.startTarget(ctx, domains, slices.Contains(c.Features(), cases.FeatureSentinel))
		if err != nil {
			return r.result(c, Fail, err.Error(), 0)
		}
		var disturbed bool
		last, disturbed = r.attempt(ctx, t, c)
		t.end()
		if !disturbed {
			break
		}
	}
	return r.result(c, last.Outcome, last.Reason, last.Took)
}

// play plays a case, anew as long as its requests came too late for their windows.
func (r *Runner) play(ctx context.Context, t *target, c *cases.Case) Result {
	var last Result
	for range attempts {
		var disturbed bool
		last, disturbed = r.attempt(ctx, t, c)
		if !disturbed {
			break
		}
	}
	return r.result(c, last.Outcome, last.Reason, last.Took)
}

// attempt plays a case once, and reports whether the result proves nothing.
func (r *Runner) attempt(ctx context.Context, t *target, c *cases.Case) (Result, bool) {
	begin := time.Now()
	fail := func(err error) (Result, bool) {
		return Result{Outcome: Fail, Reason: err.Error(), Took: time.Since(begin)}, false
	}
	connection, err := dial(t.address)
	if err != nil {
		return fail(err)
	}
	defer connection.Close()
	connection.skew = r.Skew
	ctx, cancel := context.WithTimeout(ctx, caseTime)
	defer cancel()
	p := &play{c: c, target: t, client: connection, fresh: fmt.Sprintf("%08x", rand.Uint32())}
	err = p.run(ctx)
	switch {
	case err == nil:
		return Result{Outcome: Pass, Took: time.Since(begin)}, p.disturbed
	case p.disturbed:
		result, _ := fail(errors.Join(err, errors.New("the target or this machine is too slow for the windows of this case")))
		return result, true
	default:
		return fail(err)
	}
}
