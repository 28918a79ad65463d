package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// noting is a store that allows every charge but the denied keys, and notes each. The field was has
// the holders that it finds.
type noting struct {
	lines  []string
	silent bool            // notes nothing
	denied map[string]bool // by key
	was    map[store.Holder]algorithms.Hold
	held   []store.Held
	err    error // of Holders
}

func (n *noting) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	for i := range charges {
		c := &charges[i]
		decisions[i] = algorithms.Decision{Allowed: !n.denied[string(c.Key)], Remaining: 7}
		if c.Hold != nil {
			c.Hold.Was = n.was[c.Hold.Holder]
		}
		if n.silent {
			continue
		}
		text := fmt.Sprintf("%s hits=%d", c.Key, c.Hits)
		if c.Exact {
			text += " exact"
		}
		if c.Hold != nil {
			name := n.name(c.Hold.Holder)
			text += fmt.Sprintf(" %s %s %v", [...]string{1: "begin", 2: "end", 4: "cancel"}[c.Hold.Phase], name, c.Hold.AtMost)
		}
		n.lines = append(n.lines, text)
	}
	return store.Admitted(charges, decisions), nil
}

// name returns the name of a holder that the tests use.
func (n *noting) name(h store.Holder) string {
	for _, name := range []string{"r1", "r2"} {
		if store.HolderOf([]byte(name)) == h {
			return name
		}
	}
	if h == (store.Holder{}) {
		return "nobody"
	}
	return "other"
}

func (n *noting) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	_, err := n.Take(ctx, charges, decisions)
	return err
}

func (n *noting) Reset(_ context.Context, charges []store.Charge) (int, error) {
	for i := range charges {
		n.lines = append(n.lines, "reset "+string(charges[i].Key))
	}
	return len(charges), nil
}

func (n *noting) Holders(_ context.Context, c *store.Charge, most int) ([]store.Held, int, error) {
	n.lines = append(n.lines, fmt.Sprintf("list %s %d", c.Key, most))
	return n.held, len(n.held), n.err
}

const holdRules = `domain: edge
descriptors:
  - key: model
    rate_limit: {algorithm: concurrency, max_in_flight: 50, name: slots, hold: {begin: request, end: done, at_most: 1m}}
  - key: tenant
    rate_limits:
      - {algorithm: token_bucket, requests_per_unit: 100, unit: minute, hold: {begin: request, end: done, at_most: 10m}}
      - {algorithm: token_bucket, requests_per_unit: 5, unit: second}
      - {algorithm: token_bucket, requests_per_unit: 900, unit: hour, hold: {begin: request, end: done, at_most: 20m}}
  - key: plain_first
    rate_limits:
      - {requests_per_unit: 5, unit: second}
      - {requests_per_unit: 100, unit: minute, hold: {begin: request, end: done, at_most: 10m}}
  - key: vip
    rate_limit: {unlimited: true, replaces: [{name: slots}]}
`

func newNoting(tb testing.TB) (fixture, *noting) {
	tb.Helper()
	n := &noting{denied: make(map[string]bool), was: make(map[store.Holder]algorithms.Hold)}
	return newFixtureOn(tb, storetest.Of(n), holdRules, limiter.Options{Leased: true}), n
}

func TestBeginAndEndBecomeChargesWithAHolder(t *testing.T) {
	for _, tt := range []struct {
		name     string
		request  *limiter.Request
		want     string // charges
		outcomes string
	}{
		{"begin", request("edge", "model=a,request=r1"), "4:edge|5:model=1:a#concurrency hits=1 exact begin r1 1m0s", "limited"},
		{"end", request("edge", "model=a,done=r1 hits=70"), "4:edge|5:model=1:a#concurrency hits=70 exact end r1 1m0s", "limited"},
		{"several limits begin", request("edge", "tenant=a,request=r1 hits=30"), `
			4:edge|6:tenant=1:a#token_bucket/1m hits=30 exact begin r1 10m0s
			4:edge|6:tenant=1:a#token_bucket/1s hits=30
			4:edge|6:tenant=1:a#token_bucket/1h hits=30 exact begin r1 20m0s`, "limited"},
		{"several limits end", request("edge", "tenant=a,done=r1 hits=70"), `
			4:edge|6:tenant=1:a#token_bucket/1m hits=70 exact end r1 10m0s
			4:edge|6:tenant=1:a#token_bucket/1h hits=70 exact end r1 20m0s
			4:edge|6:tenant=1:a#token_bucket/1m/cut hits=0 exact end r1 10m0s
			4:edge|6:tenant=1:a#token_bucket/1h/cut hits=0 exact end r1 20m0s`, "limited"},
		{"two descriptors", request("edge", "model=a,request=r1", "tenant=b,done=r2"), `
			4:edge|5:model=1:a#concurrency hits=1 exact begin r1 1m0s
			4:edge|6:tenant=1:b#token_bucket/1m hits=1 exact end r2 10m0s
			4:edge|6:tenant=1:b#token_bucket/1h hits=1 exact end r2 20m0s
			4:edge|6:tenant=1:b#token_bucket/1m/cut hits=0 exact end r2 10m0s
			4:edge|6:tenant=1:b#token_bucket/1h/cut hits=0 exact end r2 20m0s`, "limited limited"},
		{"a refund at the begin is a probe", request("edge", "model=a,request=r1 hits=3 refund"), "4:edge|5:model=1:a#concurrency hits=0 exact begin r1 1m0s", "limited"},
		{"a refund at the end", request("edge", "model=a,done=r1 hits=3 refund"), "4:edge|5:model=1:a#concurrency hits=-3 exact end r1 1m0s", "limited"},
		{"a begin without a name holds namelessly", request("edge", "model=a,request="), "4:edge|5:model=1:a#concurrency hits=1 exact begin other 1m0s", "limited"},
		{"an end without a name does nothing", request("edge", "model=a,done= hits=5"), "4:edge|5:model=1:a#concurrency hits=-1 exact end nobody 1m0s", "limited"},
		{"neither", request("edge", "model=a"), "", "no limit"},
		{"replaced", request("edge", "model=a,request=r1", "vip=x"), "", "replaced unlimited"},
		{"override of concurrency", request("edge", "model=a,request=r1 override=9"), "4:edge|5:model=1:a#concurrency hits=1 exact begin r1 1m0s", "limited"},
		{"override of a rate", request("edge", "tenant=a,done=r1 override=9 hits=7"), `
			4:edge|6:tenant=1:a#token_bucket/1m hits=7 exact end r1 10m0s
			4:edge|6:tenant=1:a#token_bucket/1m/cut hits=0 exact end r1 10m0s`, "limited"},
		{"override like a limit without holders begins", request("edge", "plain_first=a,request=r1 override=9"), "4:edge|11:plain_first=1:a#fixed_window/1m hits=1 exact", "limited"},
		{"override like a limit without holders ends", request("edge", "plain_first=a,done=r1 override=9"), "", "no limit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, n := newNoting(t)
			var v limiter.Verdict
			must.Do(t, f.Check(t.Context(), tt.request, &v))
			var want []string
			for line := range strings.Lines(tt.want) {
				if line = strings.TrimSpace(line); line != "" {
					want = append(want, line)
				}
			}
			if diff := cmp.Diff(want, n.lines); diff != "" {
				t.Errorf("charges (-want +got):\n%s", diff)
			}
			var outcomes []string
			for i := range v.Statuses {
				outcomes = append(outcomes, [...]string{"no limit", "unlimited", "replaced", "limited"}[v.Statuses[i].Outcome])
			}
			if got := strings.Join(outcomes, " "); got != tt.outcomes {
				t.Errorf("outcomes: got %s; want %s", got, tt.outcomes)
			}
		})
	}
}

func TestAnOverrideOfConcurrencyIsTheNumberOfSlots(t *testing.T) {
	f, _ := newNoting(t)
	var v limiter.Verdict
	must.Do(t, f.Check(t.Context(), request("edge", "model=a,request=r1 override=9"), &v))
	l := v.Statuses[0].Limit
	if want := (algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: 9}); l.Limit != want || l.AtMost != time.Minute || l.Unit != descriptors.UnitUnknown {
		t.Errorf("limit: got %+v; want %+v and at most a minute", l, want)
	}
}

func TestEachNamelessBeginIsAnotherHolder(t *testing.T) {
	f, _ := newNoting(t)
	seen := make(map[store.Holder]bool)
	var v limiter.Verdict
	for range 100 {
		must.Do(t, f.Check(t.Context(), request("edge", "model=a,request="), &v))
		seen[v.Statuses[0].Hold.Holder] = true
	}
	if len(seen) != 100 {
		t.Errorf("100 begins have %d holders", len(seen))
	}
}

// Statuses keep their own holds when the memory for holds moves.
func TestEachStatusHasItsOwnHold(t *testing.T) {
	f, n := newNoting(t)
	r := &limiter.Request{Domain: "edge"}
	const descriptors = 40
	for i := range descriptors {
		name := fmt.Sprint("holder", i)
		d := r.Add()
		d.Entries = append(d.Entries, limiter.Entry{Key: "tenant", Value: "t"}, limiter.Entry{Key: "request", Value: name})
		n.was[store.HolderOf([]byte(name))] = algorithms.Hold{Status: algorithms.HoldHeld, Hits: uint32(i)}
	}
	var v limiter.Verdict
	must.Do(t, f.Check(t.Context(), r, &v))
	for i := range v.Statuses {
		if h := v.Statuses[i].Hold; h == nil || h.Holder != store.HolderOf(fmt.Append(nil, "holder", i)) || h.Was.Hits != uint32(i) {
			t.Errorf("descriptor %d has the hold %+v", i, h)
		}
	}
}

// holdTally returns the counts of the holders of a rule.
func holdTally(f fixture, path string) limiter.HoldTally {
	for c := range f.Counts() {
		if c.Path == path {
			return c.Counts.Holds(time.Now())
		}
	}
	f.tb.Fatalf("no rule %s", path)
	return limiter.HoldTally{}
}

func TestHoldersAreCounted(t *testing.T) {
	const hour = "4:edge|6:tenant=1:a#token_bucket/1h"
	held := algorithms.Hold{Status: algorithms.HoldHeld, Hits: 30}
	for _, tt := range []struct {
		name, request string
		was           algorithms.Hold
		denied        string
		want          limiter.HoldTally
		hits, back    uint64 // charged, given back
	}{
		{"begin", "tenant=a,request=r1 hits=30", algorithms.Hold{}, "", limiter.HoldTally{Begun: 1}, 30, 0},
		{"a probe holds nothing", "tenant=a,request=r1 hits=0", algorithms.Hold{}, "", limiter.HoldTally{}, 0, 0},
		{"denied", "tenant=a,request=r1", algorithms.Hold{}, hour, limiter.HoldTally{}, 0, 0},
		{"repeat", "tenant=a,request=r1 hits=5", held, "", limiter.HoldTally{Repeated: 1}, 0, 0},
		{"end below the estimate", "tenant=a,done=r1 hits=20", held, "", limiter.HoldTally{Ended: 1, Estimate: 30, Cost: 20}, 0, 10},
		{"end above the estimate", "tenant=a,done=r1 hits=70", held, "", limiter.HoldTally{Ended: 1, Estimate: 30, Cost: 70}, 40, 0},
		{"refund at the end", "tenant=a,done=r1 hits=70 refund", held, "", limiter.HoldTally{Ended: 1, Estimate: 30}, 0, 30},
		{"end of nobody", "tenant=a,done=r1 hits=70", algorithms.Hold{}, "", limiter.HoldTally{Unseen: 1}, 70, 0},
		{"end of a denied one", "tenant=a,done=r1 hits=70", algorithms.Hold{Status: algorithms.HoldDenied}, "", limiter.HoldTally{}, 0, 0},
		{"second end", "tenant=a,done=r1 hits=70", algorithms.Hold{Status: algorithms.HoldEnded}, "", limiter.HoldTally{}, 0, 0},
		{"end without a name", "tenant=a,done= hits=70", algorithms.Hold{}, "", limiter.HoldTally{}, 0, 0},
		{"slots", "model=a,done=r1 hits=70", held, "", limiter.HoldTally{Ended: 1}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, n := newNoting(t)
			n.was[store.HolderOf([]byte("r1"))] = tt.was
			n.denied[tt.denied] = true
			var v limiter.Verdict
			must.Do(t, f.Check(t.Context(), request("edge", tt.request), &v))
			path, _, _ := strings.Cut(tt.request, "=")
			if diff := cmp.Diff(tt.want, holdTally(f, path)); diff != "" {
				t.Errorf("holders (-want +got):\n%s", diff)
			}
			for c := range f.Counts() {
				if total := c.Counts.Total(); c.Path == path && (total.Hits[limiter.CodeOK] != tt.hits || total.Refunded != tt.back) {
					t.Errorf("hits: got %d charged and %d given back; want %d and %d", total.Hits[limiter.CodeOK], total.Refunded, tt.hits, tt.back)
				}
			}
		})
	}
}

func TestABeginThatAnotherDescriptorDeniesIsNotBegun(t *testing.T) {
	f, n := newNoting(t)
	n.denied["4:edge|5:model=1:a#concurrency"] = true
	var v limiter.Verdict
	must.Do(t, f.Check(t.Context(), request("edge", "tenant=a,request=r1", "model=a,request=r1"), &v))
	if got := holdTally(f, "tenant"); !v.OverLimit || got != (limiter.HoldTally{}) {
		t.Errorf("over limit %v, holders %+v; want a denial that holds nothing", v.OverLimit, got)
	}
}

const slotRules = `domain: edge
descriptors:
  - {key: model, rate_limit: {algorithm: concurrency, max_in_flight: 2, name: slots, hold: {begin: r, end: d, at_most: 1m}}}
  - {key: tokens, rate_limit: {algorithm: fixed_window, unit: day, requests_per_unit: 100, hold: {begin: r, end: d, at_most: 1m}}}
  - {key: shadow, shadow_mode: true, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: r, end: d, at_most: 1m}}}
  - {key: quota, quota_mode: true, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: r, end: d, at_most: 1m}}}
  - {key: other, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: banned, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: vip, rate_limit: {unlimited: true, replaces: [{name: slots}]}}
`

// step is a request, and the answer as fixture.check writes it.
type step struct {
	ask  []string // the descriptors of a request; or "wait DURATION"; or "teach DESCRIPTOR", see fixture.teach
	want string   // of teach: "N of COST"
}

// run takes steps, in a bubble if a step waits.
func (f fixture) run(steps []step) {
	f.tb.Helper()
	for i, s := range steps {
		if wait, ok := strings.CutPrefix(s.ask[0], "wait "); ok {
			time.Sleep(must.Get(time.ParseDuration(wait))(f.tb))
		} else if descriptor, ok := strings.CutPrefix(s.ask[0], "teach "); ok {
			var n, cost int
			must.Get(fmt.Sscanf(s.want, "%d of %d", &n, &cost))(f.tb)
			f.teach(descriptor, n, cost)
		} else if got := f.check(request("edge", s.ask...)); got != s.want {
			f.tb.Errorf("step %d, %v: got %s; want %s", i, s.ask, got, s.want)
		}
	}
}

// wants asks for one descriptor.
func (f fixture) wants(descriptor, want string) {
	f.tb.Helper()
	if got := f.check(request("edge", descriptor)); got != want {
		f.tb.Errorf("%s: got %s; want %s", descriptor, got, want)
	}
}

func TestHoldersThroughTheStore(t *testing.T) {
	one := func(text, want string) step { return step{[]string{text}, want} }
	for name, steps := range map[string][]step{
		"slots": {
			one("model=a,r=1", "OK ok:1/2"), one("model=a,r=2", "OK ok:0/2"), one("model=a,r=3", "OVER over:0/2"), one("model=b,r=3", "OK ok:1/2"),
			one("model=a,d=3", "OK ok:0/2"), one("model=a,r=1", "OK ok:0/2"), one("model=a,d=1", "OK ok:1/2"), one("model=a,d=1", "OK ok:1/2"),
			one("model=a,r=4 hits=2", "OVER over:1/2"), one("model=a,r=4 hits=0", "OK ok:1/2"), one("model=a,r=4", "OK ok:0/2"),
		},
		"costs": {
			one("tokens=a,r=1 hits=60", "OK ok:40/100"), one("tokens=a,r=2 hits=60", "OVER over:40/100"), one("tokens=a,d=2 hits=60", "OK ok:40/100"),
			one("tokens=a,d=1 hits=10", "OK ok:90/100"), one("tokens=a,d=1 hits=10", "OK ok:90/100"), one("tokens=a,d=9 hits=50", "OK ok:40/100"),
			one("tokens=a,r=3 hits=40", "OK ok:0/100"), one("tokens=a,d=3 hits=70", "OK ok:0/100"), one("tokens=a,r=4 hits=0", "OVER over:0/100"),
		},
		"a begin that another descriptor denies holds nothing": {
			{[]string{"model=a,r=1", "tokens=a,r=1 hits=60", "banned=x"}, "OVER ok:2/2 ok:100/100 over:0/0"},
			{[]string{"model=a,d=1", "tokens=a,d=1 hits=60"}, "OK ok:2/2 ok:100/100"},
		},
		"an end is applied in a request that is denied": {
			one("model=a,r=1 hits=2", "OK ok:0/2"), {[]string{"model=a,d=1", "banned=x"}, "OVER ok:2/2 over:0/0"}, one("model=a,r=2 hits=2", "OK ok:0/2"),
		},
		"in shadow mode a denied one passes and holds nothing": {
			one("shadow=a,r=1", "OK ok:0/1"), one("shadow=a,r=2", "OK shadowed:0/1"), one("shadow=a,d=2", "OK ok:0/1"), one("shadow=a,d=1", "OK ok:1/1"),
		},
		"a quota that is over holds nothing": {
			{[]string{"quota=a,r=1", "other=a"}, "OK ok:0/1 ok:99/100"},
			{[]string{"quota=a,r=2", "other=a"}, "OK over:0/1 ok:98/100"},
			one("quota=a,d=2", "OK ok:0/1"), one("quota=a,d=1", "OK ok:1/1"),
		},
		"a replaced limit holds nothing": {
			{[]string{"model=a,r=1 hits=2", "vip=x"}, "OK replaced unlimited"}, one("model=a,r=2 hits=2", "OK ok:0/2"),
		},
		"a request without a name holds, and its end does nothing": {
			one("model=a,r=", "OK ok:1/2"), one("model=a,r=", "OK ok:0/2"), one("model=a,d=", "OK ok:0/2"), one("model=a,r=1", "OVER over:0/2"),
		},
		"an override gives the slots": {
			one("model=a,r=1 override=3", "OK ok:2/3"), one("model=a,r=2", "OK ok:0/2"), one("model=a,r=3", "OVER over:0/2"), one("model=a,r=3 override=3", "OK ok:0/3"),
			one("model=a,d=1 override=3", "OK ok:1/3"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newFixture(t, slotRules).run(steps)
			})
		})
	}
}

func TestSlotsAreFreeAtMostLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, slotRules)
		f.check(request("edge", "model=a,r=1 hits=2"))
		time.Sleep(time.Minute - time.Nanosecond)
		if got := f.check(request("edge", "model=a,r=2")); got != "OVER over:0/2" {
			t.Errorf("before at_most: got %s", got)
		}
		time.Sleep(time.Nanosecond)
		if got := f.check(request("edge", "model=a,r=2 hits=2")); got != "OK ok:0/2" {
			t.Errorf("at at_most: got %s", got)
		}
	})
}

func TestHoldersThatHoldAndRunOutAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, slotRules)
		for _, path := range []string{"model", "tokens"} {
			for _, end := range []string{"r=1", "r=2", "r=2", "d=1"} {
				f.check(request("edge", path+"=a,"+end))
			}
			if got := holdTally(f, path); got.Held != 1 || got.RanOut != 0 {
				t.Errorf("%s, one of two has ended: %+v", path, got)
			}
		}
		must.Get(f.Release(t.Context(), "edge", []limiter.Entry{{Key: "tokens", Value: "a"}}, store.HolderOf([]byte("2"))))(t)
		time.Sleep(time.Minute + 6*time.Second)
		for path, want := range map[string]uint64{"model": 1, "tokens": 0} {
			f.check(request("edge", path+"=a,d=2")) // too late
			if got := holdTally(f, path); got.Held != 0 || got.RanOut != want {
				t.Errorf("%s, after at_most: %+v; want %d that ran out", path, got, want)
			}
		}
	})
}

func TestAReloadFreesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wide = "domain: edge\ndescriptors: [{key: model, rate_limit: {algorithm: concurrency, max_in_flight: 3, hold: {begin: r, end: d, at_most: 1m}}}]"
		const narrow = "domain: edge\ndescriptors: [{key: model, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: r, end: d, at_most: 5s}}}]"
		f := newFixture(t, wide)
		for _, r := range []string{"1", "2", "3"} {
			f.check(request("edge", "model=a,r="+r))
		}
		f.rules(narrow)
		time.Sleep(10 * time.Second) // a change of at_most is for new holders
		for _, s := range []step{
			{[]string{"model=a,r=4"}, "OVER over:0/1"},
			{[]string{"model=a,d=1"}, "OK ok:0/1"},
			{[]string{"model=a,d=2"}, "OK ok:0/1"},
			{[]string{"model=a,r=4"}, "OVER over:0/1"},
			{[]string{"model=a,d=3"}, "OK ok:1/1"},
			{[]string{"model=a,r=4"}, "OK ok:0/1"},
		} {
			if got := f.check(request("edge", s.ask...)); got != s.want {
				t.Errorf("%v: got %s; want %s", s.ask, got, s.want)
			}
		}
		f.rules("domain: edge\ndescriptors: [{key: model, rate_limit: {unit: day, requests_per_unit: 5}}]")
		if got := f.check(request("edge", "model=a,d=4")); got != "OK none" {
			t.Errorf("the end after a reload without hold: got %s", got)
		}
	})
}

func TestResetForgetsHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, slotRules)
		f.check(request("edge", "model=a,r=1 hits=2"))
		if keys, forgotten, err := f.Reset(t.Context(), request("edge", "model=a")); err != nil || forgotten != 1 || len(keys) != 1 {
			t.Fatalf("Reset = %v, %d, %v", keys, forgotten, err)
		}
		for _, s := range []step{{[]string{"model=a,r=2 hits=2"}, "OK ok:0/2"}, {[]string{"model=a,d=1"}, "OK ok:0/2"}} {
			if got := f.check(request("edge", s.ask...)); got != s.want {
				t.Errorf("%v: got %s; want %s", s.ask, got, s.want)
			}
		}
	})
}

func TestHoldersAreListedForEachLimit(t *testing.T) {
	f, n := newNoting(t)
	n.held = []store.Held{{Holder: store.HolderOf([]byte("r1")), Hits: 3}}
	rule, all, err := f.Holders(t.Context(), "edge", []limiter.Entry{{Key: "tenant", Value: "a"}}, 5)
	if err != nil || rule.Path != "tenant" || len(all) != 2 {
		t.Fatalf("Holders = %v, %+v, %v", rule, all, err)
	}
	for i, key := range []string{"4:edge|6:tenant=1:a#token_bucket/1m", "4:edge|6:tenant=1:a#token_bucket/1h"} {
		if h := all[i]; h.Key != key || !h.Listed || h.All != 1 || !slices.Equal(h.Held, n.held) {
			t.Errorf("limit %d: got %+v", i, h)
		}
		if want := "list " + key + " 5"; n.lines[i] != want {
			t.Errorf("call %d: got %q; want %q", i, n.lines[i], want)
		}
	}
	n.err = store.ErrNotListed
	if _, all, err = f.Holders(t.Context(), "edge", []limiter.Entry{{Key: "tenant", Value: "a"}, {Key: "done", Value: "x"}}, 5); err != nil || all[0].Listed || len(all) != 2 {
		t.Errorf("a store that does not list: got %+v, %v", all, err)
	}
	n.err = errors.New("broken")
	if _, _, err = f.Holders(t.Context(), "edge", []limiter.Entry{{Key: "tenant", Value: "a"}}, 5); !errors.Is(err, n.err) {
		t.Errorf("a broken store: got the error %v", err)
	}
	for name, entries := range map[string][]limiter.Entry{"no rule": {{Key: "other"}}, "a rule without holders": {{Key: "vip", Value: "x"}}, "none": nil} {
		if _, _, err := f.Holders(t.Context(), "edge", entries, 5); !errors.Is(err, limiter.ErrNoHolders) {
			t.Errorf("%s: got the error %v; want %v", name, err, limiter.ErrNoHolders)
		}
	}
	if _, _, err := f.Holders(t.Context(), "elsewhere", []limiter.Entry{{Key: "tenant"}}, 5); !errors.Is(err, limiter.ErrNoHolders) {
		t.Errorf("no such domain: got the error %v", err)
	}
}

func TestReleaseCancelsAtEachLimit(t *testing.T) {
	f, n := newNoting(t)
	r1 := store.HolderOf([]byte("r1"))
	n.was[r1] = algorithms.Hold{Status: algorithms.HoldHeld, Hits: 3}
	all, err := f.Release(t.Context(), "edge", []limiter.Entry{{Key: "tenant", Value: "a"}}, r1)
	if err != nil || len(all) != 2 || all[0].Hold.Was.Hits != 3 {
		t.Fatalf("Release = %+v, %v", all, err)
	}
	want := []string{
		"4:edge|6:tenant=1:a#token_bucket/1m hits=0 exact cancel r1 10m0s",
		"4:edge|6:tenant=1:a#token_bucket/1h hits=0 exact cancel r1 20m0s",
	}
	if diff := cmp.Diff(want, n.lines); diff != "" {
		t.Errorf("charges (-want +got):\n%s", diff)
	}
	if got := holdTally(f, "tenant"); got != (limiter.HoldTally{Released: 1}) {
		t.Errorf("a release counts as %+v", got)
	}
	if _, err := f.Release(t.Context(), "edge", []limiter.Entry{{Key: "vip", Value: "a"}}, r1); !errors.Is(err, limiter.ErrNoHolders) {
		t.Errorf("no holders: got the error %v", err)
	}
}

func TestResetNeedsNoHolder(t *testing.T) {
	want := []string{"4:edge|6:tenant=1:a#token_bucket/1h", "4:edge|6:tenant=1:a#token_bucket/1m", "4:edge|6:tenant=1:a#token_bucket/1s"}
	for _, text := range []string{"tenant=a", "tenant=a,request=r1", "tenant=a,done=r1"} {
		f, n := newNoting(t)
		keys, forgotten, err := f.Reset(t.Context(), request("edge", text))
		slices.Sort(keys)
		if err != nil || forgotten != 3 || !slices.Equal(keys, want) || len(n.lines) != 5 { // two are rate limits with a holder
			t.Errorf("%s: Reset = %v, %d, %v; want %v", text, keys, forgotten, err, want)
		}
	}
}

func TestExplainShowsTheHolderAndTheOthers(t *testing.T) {
	f, n := newNoting(t)
	n.held = []store.Held{{Holder: store.HolderOf([]byte("r2")), Hits: 3}}
	n.was[store.HolderOf([]byte("r1"))] = algorithms.Hold{Status: algorithms.HoldHeld, Hits: 4}
	all, err := f.Explain(t.Context(), request("edge", "tenant=a,request=r1"))
	if err != nil || len(all[0].Limits) != 3 {
		t.Fatalf("Explain = %+v, %v", all, err)
	}
	for i, limit := range all[0].Limits {
		switch holds := i != 1; {
		case holds && (limit.Hold.Was.Hits != 4 || limit.Holders.All != 1 || limit.Holders.Held[0].Hits != 3):
			t.Errorf("limit %d: got %+v", i, limit)
		case !holds && (limit.Hold != nil || limit.Holders != nil):
			t.Errorf("a limit without holders: got %+v", limit)
		}
	}
}
