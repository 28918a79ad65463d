package cases

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/lab"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// Run runs the tests of a file under rules, each from an empty store. The error comes from ctx.
func Run(ctx context.Context, f *File, rules *descriptors.Rules) ([]Result, error) {
	var all []Result
	for i := range f.Tests {
		failures, err := run(ctx, f, &f.Tests[i], rules)
		if err != nil {
			return nil, err
		}
		all = append(all, Result{&f.Tests[i], failures})
	}
	return all, nil
}

// maxFailures bounds the failures of a test that are reported.
const maxFailures = 100

type running struct {
	*Test
	file     string
	failures descriptors.Errors
}

func run(ctx context.Context, f *File, t *Test, rules *descriptors.Rules) (descriptors.Errors, error) {
	w, err := lab.New(rules, memstore.Options{})
	if err != nil {
		return nil, err
	}
	defer w.Close()
	r := running{Test: t, file: f.Path}
	var v limiter.Verdict
	for i := range t.Steps {
		step := &t.Steps[i]
		w.SetTime(algorithms.Instant(t.Start.Add(step.At).UnixNano()))
		request := limiter.Request{Domain: t.Domain}
		for n := range step.Descriptors {
			request.Descriptors = append(request.Descriptors, step.Descriptors[n].Descriptor)
		}
		before := len(r.failures)
		for n := 1; n <= step.Times && len(r.failures) == before; n++ { // the times after the first failure would fail alike
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			if err := w.Check(ctx, &request, &v); err != nil {
				r.fail(step, step.Line, n, "", "%v", err)
				break
			}
			r.check(step, n, &v)
		}
	}
	return r.failures, nil
}

// fail records a failure of a step, at one of its times.
func (r *running) fail(s *Step, line, n int, descriptor, format string, args ...any) {
	if len(r.failures) >= maxFailures {
		return
	}
	where := fmt.Sprintf("%s: at %v", shown(r.Name), s.At)
	if s.Times > 1 {
		where += fmt.Sprintf(", request %d of %d", n, s.Times)
	}
	if descriptor != "" {
		where += ": " + shown(descriptor)
	}
	r.failures = append(r.failures, descriptors.Error{File: r.file, Line: line, Text: where + ": " + fmt.Sprintf(format, args...)})
}

// shown returns a text for a line of a report: quoted where it is not printable.
func shown(text string) string {
	if strings.ContainsFunc(text, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return strconv.Quote(text)
	}
	return text
}

func (r *running) check(s *Step, n int, v *limiter.Verdict) {
	verdict := ok
	if v.OverLimit {
		verdict = overLimit
	}
	if s.Verdict != "" && s.Verdict != verdict {
		r.fail(s, s.Line, n, "", "the verdict is %s, want %s", verdict, s.Verdict)
	}
	if room := slices.Collect(v.WithRoom()); s.Groups != nil && !slices.Equal(room, s.Groups) {
		r.fail(s, s.Line, n, "", "the groups with room are %q, want %q", room, s.Groups)
	}
	for i := range s.Descriptors {
		d, status := &s.Descriptors[i], &v.Statuses[i]
		fail := func(format string, args ...any) {
			r.fail(s, d.Line, n, d.Text, format+"%s", append(args, found(status))...)
		}
		path := ""
		if status.Rule != nil {
			path = status.Rule.Path
		}
		if d.Rule != nil && *d.Rule != path {
			fail("the rule is %q, want %q", path, *d.Rule)
		}
		if got := outcome(v, status); d.Outcome != "" && d.Outcome != got {
			fail("the outcome is %s, want %s", got, d.Outcome)
		}
		if d.Requests == nil && d.Remaining == nil && d.Wait == nil && d.Reset == nil {
			continue
		}
		if status.Outcome != limiter.Limited {
			fail("no limit applies, want one")
			continue
		}
		if d.Requests != nil && *d.Requests != status.Limit.PerPeriod() {
			fail("requests is %d, want %d", status.Limit.PerPeriod(), *d.Requests)
		}
		if n < s.Times {
			continue
		}
		if d.Remaining != nil && *d.Remaining != status.Decision.Remaining {
			fail("remaining is %d, want %d", status.Decision.Remaining, *d.Remaining)
		}
		if d.Wait != nil && milliseconds(*d.Wait) != milliseconds(status.Decision.RetryAfter) {
			fail("wait is %v, want %v", milliseconds(status.Decision.RetryAfter), *d.Wait)
		}
		if d.Reset != nil && milliseconds(*d.Reset) != milliseconds(status.Decision.ResetAfter) {
			fail("reset is %v, want %v", milliseconds(status.Decision.ResetAfter), *d.Reset)
		}
	}
}

// found says which rule decided about a descriptor, and with which numbers.
func found(s *limiter.DescriptorStatus) string {
	switch {
	case s.Rule == nil:
		return " (no rule)"
	case s.Outcome != limiter.Limited:
		return fmt.Sprintf(" (%s:%d)", s.Rule.File, s.Rule.Line)
	case s.Limit.TableLine > 0:
		return fmt.Sprintf(" (%s:%d, %d per %v by %s:%d)", s.Rule.File, s.Rule.Line, s.Limit.Requests, s.Limit.Period,
			s.Limit.Table().File(), s.Limit.TableLine)
	case s.Limit.Algorithm == algorithms.Concurrency:
		return fmt.Sprintf(" (%s:%d, %d at once)", s.Rule.File, s.Rule.Line, s.Limit.Requests)
	default:
		return fmt.Sprintf(" (%s:%d, %d per %v)", s.Rule.File, s.Rule.Line, s.Limit.PerPeriod(), s.Limit.Period)
	}
}

// milliseconds returns a duration rounded up.
func milliseconds(d time.Duration) time.Duration {
	if rest := d % time.Millisecond; rest > 0 {
		d += time.Millisecond - rest
	}
	return d
}

func outcome(v *limiter.Verdict, s *limiter.DescriptorStatus) string {
	switch s.Outcome {
	case limiter.Unlimited:
		return unlimited
	case limiter.Replaced:
		return replaced
	case limiter.Limited:
		switch {
		case s.OverLimit:
			return overLimit
		case s.Shadowed:
			return shadowed
		}
		return ok
	case limiter.NoLimit:
	}
	switch {
	case v.Domain() == nil:
		return noDomain
	case s.Rule == nil:
		return unmatched
	default:
		return notLimited
	}
}
