package limiter_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
)

func TestADeniedProbeIsNoOffense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
		f.passes("user=a hits=2")
		f.rules(strings.Replace(offensive, "requests_per_unit: 2", "requests_per_unit: 1", 1))
		if f.passes("user=a hits=0") {
			t.Fatal("a probe past the limit passes: the test shows nothing")
		}
		time.Sleep(time.Minute)
		if !f.passes("user=a") {
			t.Error("the denied probe has blocked the key")
		}
		f.passes("user=a hits=2")
		if f.passes("user=a hits=0") || !f.isBlocked("user=a hits=0") {
			t.Error("a probe of a blocked key passes")
		}
	})
}

func TestABlockOutlivesAChangeOfAlgorithmAndPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
		f.passes("user=a hits=3")
		for n, words := range []string{
			"requests_per_unit: 20, unit: second", "algorithm: token_bucket, requests_per_unit: 20, unit: minute", "period: 7s, requests_per_unit: 2",
		} {
			f.rules(strings.Replace(offensive, "requests_per_unit: 2, unit: minute", words, 1))
			if !f.isBlocked("user=a") || f.isBlocked("user=b"+strconv.Itoa(n)) {
				t.Errorf("%s: the key is free, or another one is blocked", words)
			}
		}
		time.Sleep(time.Hour)
		if !f.passes("user=a") {
			t.Error("the block goes on")
		}
	})
}

func TestEachLimitOfARuleHasBlocksOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, `domain: edge
descriptors:
  - key: user
    rate_limits:
      - {requests_per_unit: 2, unit: second, escalate: {after: 2, within: 1m, block: [1m, 1h], forget: 1d}}
      - {requests_per_unit: 9, unit: day}
      - {requests_per_unit: 4, unit: hour, escalate: {after: 1, within: 1h, block: [2h], forget: 1d}}
`, limiter.Options{Now: time.Now})
		if f.isBlocked("user=a hits=3") {
			t.Error("blocked by one offense of two")
		}
		f.passes("user=a hits=2")
		time.Sleep(time.Second)
		f.passes("user=a hits=2")
		if time.Sleep(time.Second); f.passes("user=a") || !f.isBlocked("user=a") {
			t.Error("not blocked by the limit of the hour")
		}
		all := must.Get(f.Explain(t.Context(), request("edge", "user=a")))(t)
		var waits []time.Duration
		for _, l := range all[0].Limits {
			waits = append(waits, l.Offenses.Blocked)
		}
		if want := []time.Duration{0, 0, 2 * time.Hour}; !slices.Equal(waits, want) {
			t.Errorf("the limits are blocked for %v, want %v", waits, want)
		}
		keys, forgotten, err := f.Reset(t.Context(), request("edge", "user=a"))
		if err != nil || len(keys) != 5 || forgotten < 4 || !f.passes("user=a") {
			t.Errorf("Reset returned %q, %d, %v", keys, forgotten, err)
		}
	})
}

func TestALineOfATableHasTheOffensesOfItsOwnPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		const rules = "domain: edge\ndescriptors:\n- {key: user, rate_limit: {table: t.csv, unit: minute, requests_per_unit: 2, " +
			"escalate: {after: 2, within: 3h, block: [1h], forget: 1d}}}\n"
		for name, text := range map[string]string{"rules.yaml": rules, "t.csv": "slow,2,hour\n"} {
			must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		f := newFixtureWith(t, "domain: edge\n", limiter.Options{Now: time.Now})
		if warnings, err := f.LoadFiles(filepath.Join(dir, "rules.yaml")); err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		for minute := range 60 { // of one hour
			blocked := f.isBlocked("user=other hits=3")
			if want := minute > 0; blocked != want {
				t.Fatalf("minute %d: the block of a limit per minute is %t", minute, blocked)
			}
			if f.isBlocked("user=slow hits=3") {
				t.Fatalf("minute %d: a limit per hour has two offenses in an hour", minute)
			}
			time.Sleep(time.Minute)
		}
		if !f.isBlocked("user=slow hits=3") {
			t.Error("no block in the second hour")
		}
	})
}

func TestAKeyTwiceInARequestIsBlockedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notices []*limiter.Notice
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now, OnNotice: func(n *limiter.Notice) { notices = append(notices, n) }})
		f.passes("user=a hits=3", "user=b hits=3", "user=a hits=3")
		if len(notices) != 2 || !f.isBlocked("user=a") || !f.isBlocked("user=b") {
			t.Errorf("got %d notices, want one for each of two keys", len(notices))
		}
	})
}

func TestValuesOfClientsCannotNameTheBlockOfAnotherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, offensive, limiter.Options{Now: time.Now})
		f.passes("user=a hits=3")
		values := []string{"", "a#block", "a#fixed_window/1m", "#block", "a#block.2", "1:a", "a\x00", "\x00a", "a|4:user=1:a", "{a}", "a;10", "\xff\xfe", "A"}
		for _, value := range values {
			r := request("edge", "user=x")
			r.Descriptors[0].Entries[0].Value = value
			if got := f.check(r); !strings.HasPrefix(got, "OK") {
				t.Errorf("the block of a holds for %q: %s", value, got)
			}
		}
		for _, value := range values {
			r := request("edge", "user=x hits=3")
			r.Descriptors[0].Entries[0].Value = value
			f.check(r)
			if keys, forgotten, err := f.Reset(t.Context(), r); err != nil || len(keys) != 2 || forgotten != 2 {
				t.Errorf("%q: Reset returned %q, %d, %v; want its count and its block", value, keys, forgotten, err)
			}
		}
		if !f.isBlocked("user=a") {
			t.Error("the block of a is gone")
		}
	})
}

func TestALimitWithEscalateAndASchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight
		f := newFixtureWith(t, `domain: edge
descriptors:
  - key: user
    rate_limit:
      requests_per_unit: 0
      unit: minute
      schedule: [{hours: "09:00-17:00", requests_per_unit: 2}]
      escalate: {after: 1, within: 1m, block: [30m], forget: 1d}
`, limiter.Options{Now: time.Now})
		if f.passes("user=a") || f.isBlocked("user=a") {
			t.Error("a limit of 0 blocks, or lets pass")
		}
		if time.Sleep(9 * time.Hour); !f.passes("user=a") {
			t.Error("the denial by a limit of 0 was an offense")
		}
		f.passes("user=a hits=3")
		if d := f.explained(t, "user=a"); d.RetryAfter != 30*time.Minute {
			t.Errorf("got %+v, want a block of 30m", d)
		}
	})
}

// explained returns the decision on a hit of the one limit of a descriptor.
func (f fixture) explained(t *testing.T, descriptor string) algorithms.Decision {
	t.Helper()
	all := must.Get(f.Explain(t.Context(), request("edge", descriptor)))(t)
	return all[0].Limits[0].Decision
}
