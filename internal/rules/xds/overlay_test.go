package xds

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/lab"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/test/parts"
)

const (
	hourly = ratelimitv3.RateLimitUnit_HOUR
	daily  = ratelimitv3.RateLimitUnit_DAY
)

// overlaid returns a resource with a limit of 100 on each of two keys.
func overlaid(domain string, unit ratelimitv3.RateLimitUnit) *ratelimitv3.RateLimitConfig {
	c := &ratelimitv3.RateLimitConfig{Name: domain, Domain: domain}
	for _, key := range []string{"user", "plan"} {
		c.Descriptors = append(c.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Key: key, RateLimit: &ratelimitv3.RateLimitPolicy{Unit: unit, RequestsPerUnit: 100},
		})
	}
	return c
}

// overlayOf returns an overlay that gives limits of each unit an algorithm.
func overlayOf(hour, day string) string {
	return fmt.Sprintf("overlay:\n- for: {unit: hour}\n  set: {algorithm: %s}\n- for: {unit: day}\n  set: {algorithm: %s}\n", hour, day)
}

// overlaidSubject is a client whose rules have an overlay in a file. One caller asks all the time,
// and its decisions come from the rules before a step, or from the rules after it.
type overlaidSubject struct {
	*subject
	t    *testing.T
	file string
	hits uint64 // of alice

	mu    sync.Mutex
	legal [][2]string
}

func startOverlaid(t *testing.T, p *plane, delta bool, overlay string) *overlaidSubject {
	t.Helper()
	w := must.Get(lab.New(nil, memstore.Options{MaxKeys: 10_000}))(t)
	t.Cleanup(w.Close)
	w.SetTime(algorithms.Instant(time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC).UnixNano()))
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	s := &overlaidSubject{t: t, file: filepath.Join(t.TempDir(), "overlay.yaml")}
	s.write(overlay)
	r := must.Get(reload.New(reload.Options{Limiter: w.Limiter, Paths: []string{s.file}, Pushed: true, Logger: logger}))(t)
	must.Do(t, r.Load(t.Context()))
	s.subject = runClient(t, w.Limiter, r, Options{Address: p.Address, Delta: delta, Logger: logger})
	s.background(func() { _ = r.Run(t.Context()) }) // until the test ends
	s.background(func() {
		for t.Context().Err() == nil {
			s.watch("a", 0)
			s.watch("b", 1)
		}
	})
	return s
}

func (s *overlaidSubject) background(f func()) {
	var running sync.WaitGroup
	running.Go(f)
	s.t.Cleanup(running.Wait)
}

func (s *overlaidSubject) write(text string) {
	next := s.file + ".next"
	must.Do(s.t, os.WriteFile(next, []byte(text), 0o600))
	must.Do(s.t, os.Rename(next, s.file))
}

// watch makes a decision for a domain, which has the place in the states.
func (s *overlaidSubject) watch(domain string, place int) {
	before := s.allowed()
	got := s.limits(domain, "watcher")
	legal := append(before, s.allowed()...)
	if !slices.ContainsFunc(legal, func(state [2]string) bool { return state[place] == got }) && len(legal) > 0 {
		s.t.Errorf("a decision for %s has the limits %s, want those of one of %q", domain, got, legal)
	}
}

// limits returns the limit of a decision, if its two descriptors have the same; else both.
func (s *overlaidSubject) limits(domain, user string) string {
	request, verdict := limiter.Request{Domain: domain}, limiter.Verdict{}
	for _, key := range []string{"user", "plan"} {
		d := request.Add()
		d.Probe = true
		d.Entries = append(d.Entries, limiter.Entry{Key: key, Value: user})
	}
	if err := s.limiter.Check(context.Background(), &request, &verdict); err != nil {
		s.t.Errorf("a decision for %s: %v", domain, err)
	}
	var all []string
	for i := range verdict.Statuses {
		text := "none"
		if l := verdict.Statuses[i].Limit; l != nil {
			text = l.Unit.String() + " " + l.Algorithm.String()
		}
		all = append(all, text)
	}
	return strings.Join(slices.Compact(all), " and ")
}

// state returns the limits of decisions for the domains a and b.
func (s *overlaidSubject) state() [2]string {
	return [2]string{s.limits("a", "alice"), s.limits("b", "alice")}
}

// step makes a change, and waits until decisions have want. Hits of alice count before and after.
func (s *overlaidSubject) step(name string, want [2]string, change func()) {
	s.t.Helper()
	before := s.state()
	s.allow(before, want)
	change()
	eventually(s.t, func() string {
		if got := s.state(); got != want {
			return fmt.Sprintf("%s: decisions have %q, want %q; mistakes %q", name, got, want, s.reloader.Status().Errors)
		}
		return ""
	})
	s.allow(want)
	if want == both("none") {
		return
	}
	result := must.Get(s.limiter.Allow(s.t.Context(), "a", limiter.Entry{Key: "user", Value: "alice"}))(s.t)
	s.hits++
	if result.Remaining != 100-s.hits { // four limits in all, as many as carry hits over
		s.t.Errorf("%s: after %d hits: got %d remaining, want %d", name, s.hits, result.Remaining, 100-s.hits)
	}
}

func (s *overlaidSubject) allow(states ...[2]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.legal = states
}

func (s *overlaidSubject) allowed() [][2]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.legal)
}

func both(limit string) [2]string { return [2]string{limit, limit} }

// mistakes waits until the last load has exactly these mistakes.
func (s *overlaidSubject) mistakes(parts ...string) {
	s.t.Helper()
	eventually(s.t, func() string {
		got := s.reloader.Status().Errors
		if len(got) != len(parts) {
			return fmt.Sprintf("mistakes: got %q, want %q", got, parts)
		}
		for i, part := range parts {
			if !strings.Contains(got[i], part) {
				return fmt.Sprintf("mistakes: got %q, want %q", got, parts)
			}
		}
		return ""
	})
}

func (s *overlaidSubject) warns(part string) {
	s.t.Helper()
	if got := s.reloader.Status().Warnings; len(got) != 1 || !strings.Contains(got[0], part) {
		s.t.Errorf("warnings: got %q, want one with %q", got, part)
	}
}

// A plane goes, comes back with other rules under the same version, and sends a bad resource. The
// overlay changes, is wrong, is gone, and matches nothing. No decision has half of a change, and
// each hit counts once.
func TestAnOverlayAndAPlaneThatFailInTurnsKeepRulesWholeAndCounts(t *testing.T) {
	for name, delta := range kinds() {
		t.Run(name, func(t *testing.T) {
			p := startPlane(t)
			p.set("1", overlaid("a", hourly), overlaid("b", hourly))
			first, second := overlayOf("token_bucket", "sliding_window_counter"), overlayOf("sliding_window_log", "sliding_window_counter")
			s := startOverlaid(t, p, delta, first)
			s.step("the first rules", both("hour token_bucket"), func() {})
			s.step("the plane is gone", both("hour token_bucket"), p.Stop)
			s.step("the overlay changes without the plane", both("hour sliding_window_log"), func() { s.write(second) })
			s.step("the plane is back, with other rules under the same version", both("day sliding_window_counter"), func() {
				p.Forget()
				p.set("1", overlaid("a", daily), overlaid("b", daily))
				p.restart()
			})
			s.step("a resource is bad", [2]string{"day sliding_window_counter", "hour sliding_window_log"}, func() {
				from := len(p.Requests())
				p.set("2", overlaid("a", 9), overlaid("b", hourly))
				p.awaitRequest(t, from, "a refusal", func(r parts.XDSRequest) bool { return r.Refused && strings.Contains(r.Refusal, "xds:a: ") })
			})
			s.step("the overlay is wrong", [2]string{"day sliding_window_counter", "hour sliding_window_log"}, func() {
				s.write("overlay:\n- for: {unit: hour}\n  set: {algorithm: TokenBucket}\n")
				s.mistakes("overlay.yaml:3: overlay[0].set.algorithm: ", "xds:a: descriptors[0]", "xds:a: descriptors[1]")
			})
			s.step("the plane is good again, the overlay still wrong", both("hour sliding_window_log"), func() {
				p.set("3", overlaid("a", hourly), overlaid("b", hourly))
			})
			s.mistakes("overlay.yaml:3: overlay[0].set.algorithm: ")
			s.step("the overlay is gone", both("hour sliding_window_log"), func() {
				must.Do(t, os.Remove(s.file))
				s.mistakes("overlay.yaml: no such file or directory")
			})
			s.step("a push without the overlay's file", both("day sliding_window_counter"), func() {
				p.set("4", overlaid("a", daily), overlaid("b", daily))
			})
			s.mistakes("overlay.yaml: no such file or directory")
			s.step("the overlay is back and matches nothing", both("day fixed_window"), func() {
				s.write("overlay:\n- for: {domain: nobody}\n  set: {algorithm: token_bucket}\n")
			})
			s.mistakes()
			s.warns("overlay.yaml:2: warning: overlay[0]")
			s.step("the overlay of the beginning is back", both("day sliding_window_counter"), func() { s.write(first) })
			s.step("a plane without rules", both("none"), func() { p.set("5") })
			s.step("all is as in the beginning", both("hour token_bucket"), func() {
				p.set("6", overlaid("a", hourly), overlaid("b", hourly))
			})
			s.mistakes()
			if d := s.limiter.Rules().Domain("a").Match([]descriptors.Entry{{Key: "user", Value: "x"}}); d == nil || d.Limits[0].Overlay() == "" {
				t.Errorf("got the rule %v, want one that names its overlay", d)
			}
		})
	}
}
