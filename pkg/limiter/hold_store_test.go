package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

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
	ask  []string
	want string
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
				f := newFixture(t, slotRules)
				for i, s := range steps {
					if got := f.check(request("edge", s.ask...)); got != s.want {
						t.Errorf("step %d, %v: got %s; want %s", i, s.ask, got, s.want)
					}
				}
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
