package limiter_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const escalateRules = `domain: edge
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 2, unit: minute, escalate: {after: 3, within: 10m, block: [1m, 10m, 1h], forget: 1d}}
  - key: open
    rate_limit: {requests_per_unit: 2, unit: minute}
`

// escalating returns a limiter of escalateRules, and its notices.
func escalating(t *testing.T) (*limiter.Limiter, *memstore.Store, *[]limiter.Notice) {
	t.Helper()
	s := must.Get(memstore.New(memstore.Options{}))(t)
	var notices []limiter.Notice
	l := must.Get(limiter.New(s, limiter.Options{Now: time.Now, OnNotice: func(n *limiter.Notice) { notices = append(notices, *n) }}))(t)
	rules, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(escalateRules)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l.SetRules(rules)
	return l, s, &notices
}

func allow(t *testing.T, l *limiter.Limiter, key, value string) limiter.Result {
	t.Helper()
	return must.Get(l.Allow(t.Context(), "edge", limiter.Entry{Key: key, Value: value}))(t)
}

// offend spends the limit of a user in a new minute, and returns the answer to one request more.
func offend(t *testing.T, l *limiter.Limiter, user string) limiter.Result {
	t.Helper()
	time.Sleep(time.Minute - time.Duration(time.Now().UnixNano())%time.Minute)
	allow(t, l, "user", user)
	allow(t, l, "user", user)
	return allow(t, l, "user", user)
}

func TestAKeyThatOffendsAgainIsBlockedForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s, notices := escalating(t)
		defer s.Close()
		for n, block := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour, time.Hour} {
			for range 2 {
				if got := offend(t, l, "a"); got.RetryAfter > time.Minute {
					t.Fatalf("block %d came too early: %+v", n, got)
				}
				for range 20 { // further denials of the minute are no offenses
					allow(t, l, "user", "a")
				}
			}
			got := offend(t, l, "a")
			if got.Allowed || got.RetryAfter != block {
				t.Fatalf("block %d: got %+v; want %v", n, got, block)
			}
			if len(*notices) != n+1 || (*notices)[n].Block != block || (*notices)[n].Key != "4:edge|4:user=1:a#fixed_window/1m" {
				t.Fatalf("block %d: got notices %+v", n, *notices)
			}
			time.Sleep(block - time.Second)
			if got := allow(t, l, "user", "a"); got.Allowed || got.RetryAfter != time.Second {
				t.Fatalf("block %d: a second before its end %+v", n, got)
			}
			if got := allow(t, l, "user", "b"); !got.Allowed {
				t.Fatal("another key is blocked")
			}
			time.Sleep(time.Second)
			for range 2 { // nothing was charged meanwhile
				if got := allow(t, l, "user", "a"); !got.Allowed {
					t.Fatalf("block %d: after its end %+v", n, got)
				}
			}
		}
		time.Sleep(24 * time.Hour)
		for range 2 {
			offend(t, l, "a")
		}
		if got := offend(t, l, "a"); got.RetryAfter != time.Minute {
			t.Errorf("after forget: got %+v", got)
		}
	})
}

func TestOffendersTakeNoPlaceOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s, _ := escalating(t)
		defer s.Close()
		for range 3 {
			offend(t, l, "a")
		}
		if got := s.Stats(); got.Keys != 1 || got.Offenders != 1 || got.Blocked != 1 {
			t.Errorf("got %+v", got)
		}
		for i := range 300 {
			for range 3 {
				allow(t, l, "user", fmt.Sprint("x", i))
			}
		}
		if got := s.Stats(); got.Offenders != 301 {
			t.Errorf("got %d offenders", got.Offenders)
		}
	})
}

func TestARequestUnderALimitWithEscalateAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	l, s, _ := escalating(t)
	defer s.Close()
	var v limiter.Verdict
	r := request("edge", "user=a")
	for range 5 {
		if err := l.Check(t.Context(), r, &v); err != nil {
			t.Fatal(err)
		}
	}
	if got := testing.AllocsPerRun(1000, func() { _ = l.Check(t.Context(), r, &v) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// offensive has limits of which one denial is an offense, and blocks for an hour.
const offensive = `domain: edge
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 2, unit: minute, escalate: &hour {after: 1, within: 10m, block: [1h], forget: 1d}}
  - {key: shadow, shadow_mode: true, rate_limit: {requests_per_unit: 2, unit: minute, escalate: *hour}}
  - {key: quota, quota_mode: true, rate_limit: {requests_per_unit: 2, unit: minute, escalate: *hour}}
  - {key: grouped, quota_mode: true, group: g, rate_limit: {requests_per_unit: 2, unit: minute, escalate: *hour}}
  - {key: allow, on_store_error: deny, rate_limit: {requests_per_unit: 2, unit: minute, escalate: *hour}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, requests_per_unit: 2, unit: minute, escalate: *hour}}
  - {key: log, rate_limit: {algorithm: sliding_window_log, requests_per_unit: 2, unit: minute, escalate: *hour}}
  - {key: counter, rate_limit: {algorithm: sliding_window_counter, requests_per_unit: 2, unit: minute, escalate: *hour}}
  - {key: plan, rate_limit: {name: plan, requests_per_unit: 2, unit: minute, escalate: *hour}}
  - {key: vip, rate_limit: {requests_per_unit: 100, unit: minute, replaces: [{name: plan}]}}
  - {key: other, rate_limit: {requests_per_unit: 100, unit: minute, count_rejected: false}}
  - key: tokens
    rate_limit: {algorithm: token_bucket, requests_per_unit: 2, unit: minute, escalate: *hour, hold: {begin: begin, end: end, at_most: 1d}}
`

// isBlocked reports whether a block denies these descriptors now.
func (f fixture) isBlocked(descriptors ...string) bool {
	f.tb.Helper()
	var v limiter.Verdict
	must.Do(f.tb, f.Check(f.tb.Context(), request("edge", descriptors...), &v))
	return v.OverLimit && slices.ContainsFunc(v.Statuses, func(s limiter.DescriptorStatus) bool { return s.Blocked > 0 })
}

func (f fixture) passes(descriptors ...string) bool {
	f.tb.Helper()
	return strings.HasPrefix(f.check(request("edge", descriptors...)), "OK")
}

func TestADenialByTheLimitsOwnCountIsAnOffenseOfEachAlgorithm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
		for _, key := range []string{"user", "bucket", "log", "counter", "tokens"} {
			one, usual := key+"=a", "a hits=2"
			if key == "tokens" {
				one, usual = "tokens=a,begin=x", "a,begin=y hits=3"
			}
			if key != "tokens" && (!f.passes(key+"="+usual) || f.isBlocked(key+"=b hits=1")) {
				t.Errorf("%s: blocked too early", key)
			}
			f.passes(key + "=" + usual)
			f.passes(one)
			if !f.isBlocked(one) {
				t.Errorf("%s: not blocked", key)
			}
			time.Sleep(59 * time.Minute)
			if !f.isBlocked(one) {
				t.Errorf("%s: not blocked after 59 minutes", key)
			}
			time.Sleep(time.Minute)
			if !f.passes(one) {
				t.Errorf("%s: denied after an hour", key)
			}
		}
	})
}

func TestShadowQuotasOutagesAndFullMemoryMakeNoOffense(t *testing.T) {
	deny := func(f fixture, descriptor string) (denied bool) {
		for range 5 {
			denied = !f.passes(descriptor) || denied
		}
		return denied
	}
	for name, c := range map[string]struct {
		key   string
		o     limiter.Options
		store func(tb testing.TB) store.Store
		after func(s store.Store)
	}{
		"shadow of the rule": {key: "shadow"},
		"shadow of all":      {key: "user", o: limiter.Options{Shadow: true}},
		"a quota":            {key: "quota"},
		"a quota of a group": {key: "grouped"},
		"all are quotas":     {key: "user", o: limiter.Options{Quota: true}},
		"an outage": {
			key: "user",
			store: func(tb testing.TB) store.Store {
				tb.Helper()
				return &others{Store: newMemory(tb), without: true}
			},
			after: func(s store.Store) {
				if o, ok := s.(*others); ok {
					o.without = false
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newMemory(t)
				if c.store != nil {
					s = c.store(t)
				}
				c.o.Now = time.Now
				f := newFixtureOn(t, s, offensive, c.o)
				deny(f, c.key+"=a")
				if c.after != nil {
					c.after(s)
				}
				time.Sleep(time.Minute)
				if !f.passes(c.key + "=a") {
					t.Error("denied in the next minute")
				}
			})
		})
	}
	t.Run("full memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := must.Get(memstore.New(memstore.Options{MaxKeys: 512, OnFull: memstore.Deny}))(t)
			defer s.Close()
			f := newFixtureOn(t, s, offensive, limiter.Options{Now: time.Now})
			for i := range 2000 { // of keys that are denied, none is forgotten
				f.passes(fmt.Sprint("other=", i, " hits=100"))
				f.passes(fmt.Sprint("other=", i))
			}
			if !deny(f, "user=innocent") {
				t.Fatal("a full store denies nobody: the test shows nothing")
			}
			if f.isBlocked("user=innocent") || s.Stats().Offenders > 0 {
				t.Error("the denial of a full store is an offense")
			}
		})
	})
}

func TestARequestThatAnotherLimitDeniesIsNoOffense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
		f.passes("other=a hits=100")
		for range 5 {
			f.passes("user=a", "other=a")
		}
		if !f.passes("user=a") {
			t.Error("denied")
		}
		f.passes("user=b hits=3") // blocked: the whole request is denied, and nothing is charged
		for range 200 {
			f.passes("user=b", "other=b")
		}
		if !f.passes("other=b hits=100") {
			t.Error("a block charges another limit")
		}
	})
}

func TestEndsAndRefundsPassABlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
		f.passes("tokens=a,begin=x")
		f.passes("tokens=a,begin=y hits=2")
		if !f.isBlocked("tokens=a,begin=z") {
			t.Fatal("not blocked")
		}
		if !f.passes("tokens=a,end=x") {
			t.Error("an end is denied")
		}
		f.passes("user=a hits=3")
		if !f.isBlocked("user=a") || !f.passes("user=a hits=1 refund=1") {
			t.Error("a refund is denied")
		}
	})
}

func TestTheBlockOfAReplacedLimitDoesNotApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
		f.passes("plan=a hits=3")
		if !f.isBlocked("plan=a") || !f.passes("plan=a", "vip=a") {
			t.Error("the request is not decided by the limit that replaces the blocked one")
		}
	})
}

func TestAnUnlimitedGrantWinsOverABlockAndAResetEndsTheBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
		f.passes("user=a hits=3")
		f.ChangeGrants(nil, []*limiter.Grant{grant("g1", "user=a", unlimited)})
		if !f.passes("user=a hits=1000") {
			t.Error("an unlimited grant does not win")
		}
		f.ChangeGrants([]string{"g1"}, []*limiter.Grant{grant("g2", "user=a", requests(1000))})
		if !f.isBlocked("user=a") {
			t.Error("more requests end a block")
		}
		f.ChangeGrants([]string{"g2"}, nil)
		keys, forgotten, err := f.Reset(t.Context(), request("edge", "user=a"))
		if err != nil || forgotten != 1 || len(keys) != 2 || keys[1] != strings.TrimSuffix(keys[0], "fixed_window/1m")+"block" {
			t.Errorf("Reset returned %q, %d, %v; want the key of the limit and the one of its block, which is forgotten", keys, forgotten, err)
		}
		if !f.passes("user=a") {
			t.Error("denied after a reset")
		}
	})
}

func TestAReloadKeepsBlocksOfLimitsThatStillEscalate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
		f.passes("user=a hits=3")
		f.rules(strings.ReplaceAll(offensive, "requests_per_unit: 2, unit: minute, escalate: &hour {after: 1, within: 10m, block: [1h]",
			"requests_per_unit: 50, unit: minute, escalate: &hour {after: 2, within: 20m, block: [2h, 3h]"))
		if !f.isBlocked("user=a") {
			t.Error("other words end a block that has begun")
		}
		f.rules("domain: edge\ndescriptors: [{key: user, rate_limit: {requests_per_unit: 2, unit: minute}}]")
		if !f.passes("user=a") {
			t.Error("a limit without escalate blocks")
		}
		f.rules(offensive)
		if !f.isBlocked("user=a") {
			t.Error("the block ended with a reload")
		}
		time.Sleep(time.Hour)
		f.rules(strings.ReplaceAll(offensive, "block: [1h]", "block: [1h, 5h]"))
		f.passes("user=a hits=3")
		time.Sleep(5*time.Hour - time.Second)
		if !f.isBlocked("user=a") {
			t.Error("the second block has not the new length")
		}
		time.Sleep(time.Second)
		if !f.passes("user=a") {
			t.Error("the second block is longer than its length")
		}
	})
}

func TestABlockIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now, TopKeys: 10})
		const key = "user=a"
		f.passes(key + " hits=3")
		all := must.Get(f.Explain(t.Context(), request("edge", key)))(t)
		if l := all[0].Limits; len(l) != 1 || l[0].Offenses.Blocked != time.Hour || l[0].Decision.Allowed || l[0].Decision.RetryAfter != time.Hour {
			t.Errorf("Explain returned %+v", all[0].Limits)
		}
		for range 3 {
			f.passes(key)
		}
		top := must.Get(f.TopKeys(t.Context(), limiter.TopQuery{}))(t)
		if k := top.Keys; len(k) != 1 || k[0].Blocked != time.Hour || k[0].Hits != 6 || k[0].Denied != 6 {
			t.Errorf("TopKeys returned %+v", top.Keys)
		}
		var v limiter.Verdict
		must.Do(t, f.Check(t.Context(), request("edge", key), &v))
		charged := slices.Collect(v.Charged(0))
		if len(charged) != 1 || charged[0].Blocked != time.Hour || charged[0].Decision.Allowed || charged[0].Decision.RetryAfter != time.Hour {
			t.Errorf("Charged returned %+v", charged)
		}
		for c := range f.Counts() {
			if want := map[bool]uint64{true: 1}[c.Path == "user"]; c.Counts.Blocks() != want {
				t.Errorf("%s: %d blocks are counted, want %d", c.Path, c.Counts.Blocks(), want)
			}
		}
		time.Sleep(time.Hour)
		all = must.Get(f.Explain(t.Context(), request("edge", key)))(t)
		if l := all[0].Limits; l[0].Offenses != (limiter.Offenses{Blocks: 1}) || !l[0].Decision.Allowed {
			t.Errorf("after the block Explain returned %+v", l)
		}
	})
}

func TestALimitWithEscalateIsNotDivided(t *testing.T) {
	f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
	if _, err := f.Dividend("edge", entriesOf("user=a")); !errors.Is(err, limiter.ErrIndivisible) {
		t.Errorf("got %v, want %v", err, limiter.ErrIndivisible)
	}
}
