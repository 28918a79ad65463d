package limiter_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
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
			4:edge|6:tenant=1:a#token_bucket/1h hits=70 exact end r1 20m0s`, "limited"},
		{"two descriptors", request("edge", "model=a,request=r1", "tenant=b,done=r2"), `
			4:edge|5:model=1:a#concurrency hits=1 exact begin r1 1m0s
			4:edge|6:tenant=1:b#token_bucket/1m hits=1 exact end r2 10m0s
			4:edge|6:tenant=1:b#token_bucket/1h hits=1 exact end r2 20m0s`, "limited limited"},
		{"a refund at the begin is a probe", request("edge", "model=a,request=r1 hits=3 refund"), "4:edge|5:model=1:a#concurrency hits=0 exact begin r1 1m0s", "limited"},
		{"a refund at the end", request("edge", "model=a,done=r1 hits=3 refund"), "4:edge|5:model=1:a#concurrency hits=-3 exact end r1 1m0s", "limited"},
		{"a begin without a name holds namelessly", request("edge", "model=a,request="), "4:edge|5:model=1:a#concurrency hits=1 exact begin other 1m0s", "limited"},
		{"an end without a name does nothing", request("edge", "model=a,done= hits=5"), "4:edge|5:model=1:a#concurrency hits=-1 exact end nobody 1m0s", "limited"},
		{"neither", request("edge", "model=a"), "", "no limit"},
		{"replaced", request("edge", "model=a,request=r1", "vip=x"), "", "replaced unlimited"},
		{"override of concurrency", request("edge", "model=a,request=r1 override=9"), "4:edge|5:model=1:a#concurrency hits=1 exact begin r1 1m0s", "limited"},
		{"override of a rate", request("edge", "tenant=a,done=r1 override=9 hits=7"), "4:edge|6:tenant=1:a#token_bucket/1m hits=7 exact end r1 10m0s", "limited"},
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
