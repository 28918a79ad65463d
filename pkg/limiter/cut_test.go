package limiter_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const cutRules = `domain: edge
descriptors:
  - key: bucket
    rate_limit: {algorithm: token_bucket, requests_per_unit: 100, unit: minute, hold: {begin: r, end: d, at_most: 10m}}
  - key: window
    rate_limit: {requests_per_unit: 100, unit: minute, hold: {begin: r, end: d, at_most: 10m}}
  - key: shadow
    shadow_mode: true
    rate_limit: {algorithm: token_bucket, requests_per_unit: 100, unit: minute, hold: {begin: r, end: d, at_most: 10m}}
  - key: both
    rate_limits:
      - {algorithm: token_bucket, requests_per_unit: 100, unit: minute, hold: {begin: r, end: d, at_most: 10m}}
      - {requests_per_unit: 1000, unit: day, hold: {begin: r, end: d, at_most: 10m}}
`

func TestAnEstimateAboveTheLimitIsCutToTheLimit(t *testing.T) {
	for name, steps := range map[string][]step{
		"a first request passes, and owes all that it cost": {
			{[]string{"bucket=a,r=1 hits=5000"}, "OK ok:0/100"},
			{[]string{"bucket=a,d=1 hits=301"}, "OK ok:0/100"},
			{[]string{"wait 2m0s"}, ""},
			{[]string{"bucket=a,r=2"}, "OVER over:0/100"},
			{[]string{"wait 2s"}, ""}, // 201 of debt, and 203 gained
			{[]string{"bucket=a,r=2"}, "OK ok:1/100"},
		},
		"a cheap one gives back": {
			{[]string{"bucket=a,r=1 hits=5000"}, "OK ok:0/100"},
			{[]string{"bucket=a,d=1 hits=40"}, "OK ok:60/100"},
		},
		"one at a time, although the bucket is full again": {
			{[]string{"bucket=a,r=1 hits=5000"}, "OK ok:0/100"},
			{[]string{"wait 1m0s"}, ""},
			{[]string{"bucket=a,r=2 hits=5000"}, "OVER over:0/100"},
			{[]string{"bucket=a,r=3 hits=100"}, "OK ok:0/100"}, // this one fits
			{[]string{"wait 1m0s"}, ""},
			{[]string{"bucket=a,d=2 hits=0"}, "OK ok:100/100"}, // an end of a denied begin frees nothing
			{[]string{"bucket=a,r=2 hits=5000"}, "OVER over:0/100"},
			{[]string{"bucket=a,d=1 hits=100"}, "OK ok:100/100"},
			{[]string{"bucket=a,r=2 hits=5000"}, "OK ok:0/100"},
		},
		"one at a time, also in the next window": {
			{[]string{"window=a,r=1 hits=101"}, "OK ok:0/100"},
			{[]string{"wait 1m0s"}, ""},
			{[]string{"window=a,r=2 hits=101"}, "OVER over:0/100"},
			{[]string{"window=b,r=3 hits=101"}, "OK ok:0/100"}, // another key
			{[]string{"window=a,d=1 hits=5000"}, "OK ok:0/100"},
			{[]string{"wait 1m0s"}, ""},
			{[]string{"window=a,r=2 hits=101"}, "OK ok:0/100"},
		},
		"a slot is free at at_most": {
			{[]string{"bucket=a,r=1 hits=101"}, "OK ok:0/100"},
			{[]string{"wait 9m59s"}, ""},
			{[]string{"bucket=a,r=2 hits=101"}, "OVER over:0/100"},
			{[]string{"wait 1s"}, ""},
			{[]string{"bucket=a,r=2 hits=101"}, "OK ok:0/100"},
		},
		"a key that has used some of its limit": {
			{[]string{"bucket=a,r=1 hits=1"}, "OK ok:99/100"},
			{[]string{"bucket=a,r=2 hits=101"}, "OVER over:99/100"},
			{[]string{"bucket=a,d=1 hits=0"}, "OK ok:100/100"},
			{[]string{"bucket=a,r=2 hits=101"}, "OK ok:0/100"},
		},
		"a larger limit beside it holds the whole estimate": {
			{[]string{"both=a,r=1 hits=600"}, "OK ok:0/100"},
			{[]string{"both=a,d=1 hits=700"}, "OK ok:0/100"},
			{[]string{"wait 10m0s"}, ""},
			{[]string{"both=a,r=2 hits=301"}, "OVER over:300/1000"},
			{[]string{"both=a,r=3 hits=300"}, "OK ok:0/100"},
		},
		"a begin that its limit denies in shadow mode takes no slot": {
			{[]string{"shadow=a,r=1 hits=1"}, "OK ok:99/100"},
			{[]string{"shadow=a,r=2 hits=5000"}, "OK shadowed:99/100"},
			{[]string{"shadow=a,d=2 hits=10"}, "OK ok:99/100"},
			{[]string{"wait 1m0s"}, ""},
			{[]string{"shadow=a,r=3 hits=5000"}, "OK ok:0/100"},
		},
		"a repeat with a larger estimate takes no slot": {
			{[]string{"bucket=a,r=1 hits=50"}, "OK ok:50/100"},
			{[]string{"bucket=a,r=1 hits=5000"}, "OK ok:50/100"},
			{[]string{"bucket=a,d=1 hits=50"}, "OK ok:50/100"},
			{[]string{"wait 1m0s"}, ""},
			{[]string{"bucket=a,r=2 hits=5000"}, "OK ok:0/100"},
		},
		"the next one comes with the end of the first": {
			{[]string{"bucket=a,r=1 hits=5000"}, "OK ok:0/100"},
			{[]string{"wait 2m0s"}, ""},
			{[]string{"bucket=a,d=1 hits=100", "bucket=a,r=2 hits=5000"}, "OK ok:100/100 ok:0/100"},
			{[]string{"wait 2m0s"}, ""},
			{[]string{"bucket=a,r=3 hits=5000"}, "OVER over:0/100"}, // the second one has the slot
			{[]string{"bucket=a,r=3 hits=5000", "bucket=a,d=2 hits=100"}, "OK ok:0/100 ok:100/100"},
			{[]string{"bucket=b,r=4 hits=5000"}, "OK ok:0/100"},
			{[]string{"wait 2m0s"}, ""},
			{[]string{"bucket=b,r=5 hits=5000", "bucket=a,d=3 hits=100"}, "OVER over:0/100 ok:100/100"}, // an end of another key
		},
		"a probe and a repeat": {
			{[]string{"bucket=a,r=1 hits=0"}, "OK ok:100/100"},
			{[]string{"bucket=a,r=1 hits=101"}, "OK ok:0/100"},
			{[]string{"bucket=a,r=1 hits=101"}, "OK ok:0/100"},
			{[]string{"bucket=a,d=1 hits=100"}, "OK ok:0/100"},
			{[]string{"bucket=a,d=1 hits=100"}, "OK ok:0/100"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newFixture(t, cutRules).run(steps)
			})
		})
	}
}

func TestACutEstimateIsCountedAndNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notices []string
		f := newFixtureWith(t, cutRules, limiter.Options{Now: time.Now, OnNotice: func(n *limiter.Notice) {
			notices = append(notices, fmt.Sprintf("%s %s %d of %d", n.Rule.Path, n.Key, n.Estimate, n.Of))
		}})
		for _, r := range []string{"r=1 hits=100", "d=1 hits=0", "r=2 hits=101", "r=2 hits=101", "r=3 hits=101"} {
			f.check(request("edge", "bucket=a,"+r))
		}
		if got := holdTally(f, "bucket"); got.Cut != 1 || got.Begun != 2 || got.Repeated != 1 {
			t.Errorf("got %+v; want one cut", got)
		}
		want := []string{"bucket 4:edge|6:bucket=1:a#token_bucket/1m 101 of 100"}
		if diff := cmp.Diff(want, notices); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
	})
}

func TestReleaseAndResetFreeTheSlotOfACutEstimate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, cutRules)
		f.check(request("edge", "bucket=a,r=1 hits=101"))
		must.Get(f.Release(t.Context(), "edge", []limiter.Entry{{Key: "bucket", Value: "a"}}, store.HolderOf([]byte("1"))))(t)
		if got := f.check(request("edge", "bucket=a,r=2 hits=101")); got != "OK ok:0/100" {
			t.Errorf("after the release: got %s", got)
		}
		if _, _, err := f.Reset(t.Context(), request("edge", "bucket=a")); err != nil {
			t.Fatal(err)
		}
		if got := f.check(request("edge", "bucket=a,r=3 hits=101")); got != "OK ok:0/100" {
			t.Errorf("after the reset: got %s", got)
		}
	})
}

func TestACutEstimateGoesToTheFirstGroupThatIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, `domain: edge
descriptors:
  - key: pt
    quota_mode: true
    group: pt
    rate_limit: {algorithm: token_bucket, requests_per_unit: 100, unit: minute, hold: {begin: r, end: d, at_most: 10m}}
  - key: od
    quota_mode: true
    group: od
    rate_limit: {algorithm: token_bucket, requests_per_unit: 200, unit: minute, hold: {begin: r, end: d, at_most: 10m}}
`)
		both := func(holder string) *limiter.Request { return request("edge", "pt=a,"+holder, "od=a,"+holder) }
		for i, s := range []struct {
			wait time.Duration
			ask  string
			want bool // over limit
			room string
		}{
			{0, "r=1 hits=300", false, "[pt od]"},
			{0, "r=2 hits=300", false, "[od]"},
			{0, "r=3 hits=300", true, "[]"},
			{time.Minute, "r=3 hits=300", true, "[]"}, // both are full again, and both slots are taken
			{0, "d=2 hits=5", true, "[]"},
		} {
			time.Sleep(s.wait)
			var v limiter.Verdict
			if err := f.Check(t.Context(), both(s.ask), &v); err != nil {
				t.Fatal(err)
			}
			if s.ask[0] == 'd' {
				continue
			}
			if got := fmt.Sprint(slices.Collect(v.WithRoom())); v.OverLimit != s.want || got != s.room {
				t.Errorf("step %d: over limit %t, room in %s; want %t, %s", i, v.OverLimit, got, s.want, s.room)
			}
		}
		var v limiter.Verdict
		if err := f.Check(t.Context(), both("r=4 hits=300"), &v); err != nil || v.OverLimit || fmt.Sprint(slices.Collect(v.WithRoom())) != "[od]" {
			t.Errorf("after an end: %v, over limit %t, room in %v", err, v.OverLimit, slices.Collect(v.WithRoom()))
		}
	})
}

// impatient is a store of which callers do not wait for a second transaction: their contexts end.
type impatient struct {
	*memstore.Store

	cancel context.CancelFunc
}

func (s *impatient) TakeNow([]store.Charge, []algorithms.Decision) (admitted, decided bool) {
	return false, false
}

func (s *impatient) TakeAll(all []store.Transaction, decided func([]int)) {
	for i := range all {
		t := &all[i]
		if t.Err = t.Ctx.Err(); t.Err == nil {
			t.Admitted, _ = s.Store.TakeNow(t.Charges, t.Decisions)
		}
		s.cancel()
		decided([]int{i})
	}
}

func TestASlotIsFreedAlsoForACallerThatWaitsNoLonger(t *testing.T) {
	s := &impatient{Store: must.Get(memstore.New(memstore.Options{}))(t)}
	defer s.Close()
	f := newFixtureOn(t, s, cutRules, limiter.Options{})
	for i, ask := range []string{"window=a,r=1 hits=5000", "window=a,d=1 hits=0", "window=a,r=2 hits=5000", "window=a,d=2 hits=0", "window=a,r=3 hits=5000"} {
		var ctx context.Context
		ctx, s.cancel = context.WithCancel(t.Context())
		var v limiter.Verdict
		q := limiter.Questions{All: []limiter.Question{{Ctx: ctx, Request: request("edge", ask), Verdict: &v}}}
		if i < 2 {
			q.All[0].Err = f.Check(ctx, q.All[0].Request, &v)
		} else {
			f.CheckAll(&q, func([]int) {})
		}
		if err := q.All[0].Err; err != nil || v.OverLimit {
			t.Errorf("%s: over limit %t, error %v", ask, v.OverLimit, err)
		}
		s.cancel()
	}
}

func TestADeniedSlotTellsTheWaitOfItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, cutRules)
		wait := func(ask string) time.Duration {
			var v limiter.Verdict
			must.Do(t, f.Check(t.Context(), request("edge", ask), &v))
			return v.Statuses[0].Decision.RetryAfter
		}
		wait("bucket=a,r=1 hits=5000")
		if got := wait("bucket=a,r=2 hits=5000"); got != time.Minute {
			t.Errorf("%v while the bucket is empty; want a minute", got)
		}
		time.Sleep(2 * time.Minute)
		if got := wait("bucket=a,r=2 hits=5000"); got != time.Second {
			t.Errorf("%v while the bucket is full, and the slot is taken; want a second", got)
		}
	})
}

// An end frees a slot once, however many begins of its key are in the request.
func TestARequestOfManyEndsAndBeginsHasBoundedCharges(t *testing.T) {
	s := &counting{Store: newMemory(t)}
	f := newFixtureOn(t, s, `domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 10, hold: {begin: r, end: d, at_most: 1m}}
`, limiter.Options{})
	r := &limiter.Request{Domain: "edge"}
	for i := range 500 {
		r.Descriptors = append(r.Descriptors, request("edge", fmt.Sprintf("user=a,r=%d hits=11", i), fmt.Sprintf("user=a,d=%d hits=1", i)).Descriptors...)
	}
	f.check(r)
	if s.most < 1500 || s.most > limiter.MaxCharges {
		t.Errorf("the store got %d charges of one request", s.most)
	}
}

// counting is a store that counts the charges of its largest transaction.
type counting struct {
	store.Store
	most int
}

func (c *counting) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	c.most = max(c.most, len(charges))
	return c.Store.TakeNow(charges, decisions)
}
