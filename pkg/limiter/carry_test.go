package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// ruleWith returns a rule document with a limit.
func ruleWith(limit string) string {
	return "domain: edge\ndescriptors: [{key: user, rate_limit: {" + limit + "}}]"
}

const (
	perSecond = "algorithm: token_bucket, unit: second, requests_per_unit: 20"
	perMinute = "algorithm: token_bucket, unit: minute, requests_per_unit: 1200, burst: 100"
	perHour   = "algorithm: sliding_window_log, unit: hour, requests_per_unit: 30"
)

// reloading returns a fixture with a clock, so that hits carry over from rules to rules.
func reloading(t *testing.T, rules string) fixture {
	t.Helper()
	return newFixtureWith(t, rules, limiter.Options{Now: time.Now})
}

// left returns the hits that remain of a client.
func (f fixture) left(descriptor string) uint64 {
	f.tb.Helper()
	var v limiter.Verdict
	if err := f.Check(f.tb.Context(), request("edge", descriptor+" hits=0"), &v); err != nil {
		f.tb.Fatal(err)
	}
	return v.Statuses[0].Decision.Remaining
}

// spend takes hits of a client and reports whether they passed.
func (f fixture) spend(descriptor string, hits int) (passed bool) {
	f.tb.Helper()
	var v limiter.Verdict
	if err := f.Check(f.tb.Context(), request("edge", fmt.Sprint(descriptor, " hits=", hits)), &v); err != nil {
		f.tb.Fatal(err)
	}
	return !v.OverLimit
}

func TestAReloadWithAnotherPeriodKeepsWhatWasUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := reloading(t, ruleWith(perSecond))
		f.spend("user=a", 11)
		f.spend("user=b", 20)
		f.rules(ruleWith(perMinute))
		if got := f.left("user=a"); got != 9 {
			t.Errorf("%d tokens after the reload; 9 were left", got)
		}
		if f.spend("user=b", 1) {
			t.Error("a denied client passed after the reload")
		}
		if got := f.left("user=c"); got != 100 {
			t.Errorf("%d tokens of a new client; want the new burst", got)
		}
		time.Sleep(50 * time.Millisecond) // a token at the new rate
		if !f.spend("user=b", 1) {
			t.Error("a client is denied although the new rate has given a token")
		}
	})
}

// A debt lasts as long as its limit takes to pay it, also for a key that nobody asks for days.
func TestADebtOfManyDaysCarriesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := func(limit string) string { return ruleWith(limit + ", hold: {begin: r, end: d, at_most: 1m}") }
		f := reloading(t, held("algorithm: token_bucket, unit: hour, requests_per_unit: 10"))
		f.spend("user=a,d=1", 10+10*24*3) // a debt of three days
		f.rules(held("algorithm: token_bucket, unit: day, requests_per_unit: 240"))
		time.Sleep(2 * 24 * time.Hour)
		if f.spend("user=a,r=2", 1) {
			t.Error("a begin passed although a day of debt is left")
		}
		time.Sleep(24*time.Hour + 10*time.Minute) // a token comes in six
		if !f.spend("user=a,r=3", 1) {
			t.Error("a begin is denied although the debt is paid")
		}
	})
}

func TestAReloadThereAndBackMakesNoHitFree(t *testing.T) {
	window := "unit: minute, requests_per_unit: 50"
	synctest.Test(t, func(t *testing.T) {
		f := reloading(t, ruleWith(window))
		f.spend("user=a", 10)
		f.rules(ruleWith(perSecond))
		for range 3 { // 20 a second, and the bucket is full again after each second
			f.spend("user=a", 10)
			time.Sleep(time.Second)
		}
		f.rules(ruleWith(window))
		if got := f.left("user=a"); got != 10 {
			t.Errorf("%d of 50 left after 10, and 30 under the other limit; want 10", got)
		}
		f.rules(ruleWith(perHour))
		f.rules(ruleWith(window))
		f.rules(ruleWith(perHour))
		if f.spend("user=a", 1) || f.left("user=a") != 0 {
			t.Error("a client has hits left under a limit of 30 an hour; 40 are used")
		}
		time.Sleep(2*time.Hour + limiter.Rollout)
		if got := f.left("user=a"); got != 30 {
			t.Errorf("%d of 30 left two hours later; want 30", got)
		}
	})
}

// Limits come and go in any order: each of their windows has all hits, once.
func TestAnyWayOfChangesCountsEachHitOnce(t *testing.T) {
	const all = 1000
	limits := [...]string{
		"unit: hour, requests_per_unit: 1000", "unit: day, requests_per_unit: 1000", "algorithm: sliding_window_log, unit: hour, requests_per_unit: 1000",
		"algorithm: sliding_window_counter, unit: day, requests_per_unit: 1000",
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range race.Scale(300) {
			random := rand.New(rand.NewPCG(uint64(seed), 1))
			at, used, way := random.IntN(len(limits)), 0, ""
			f := reloading(t, ruleWith(limits[at]))
			for range 8 {
				hits := random.IntN(3) * 7
				used += hits
				f.spend("user=a", hits)
				way += fmt.Sprintf("%c%d ", 'A'+at, hits)
				if got := f.left("user=a"); got != uint64(all-used) {
					t.Fatalf("%d left after %s; want %d", got, way, all-used)
				}
				at = random.IntN(len(limits))
				f.rules(ruleWith(limits[at]))
				time.Sleep(time.Second)
			}
		}
	})
}

// When the life of a short limit between two long ones ends, the first one gives no hits again.
func TestAShortLimitBetweenTwoLongOnesCountsEachHitOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := reloading(t, ruleWith("unit: week, requests_per_unit: 100"))
		f.spend("user=a", 10)
		f.rules(ruleWith("unit: minute, requests_per_unit: 100"))
		f.spend("user=a", 1)
		f.rules(ruleWith("unit: day, requests_per_unit: 100"))
		before := f.left("user=a")
		time.Sleep(limiter.Rollout + 10*time.Minute)
		if got := f.left("user=a"); got != before {
			t.Errorf("%d left ten minutes later, and %d before", got, before)
		}
	})
}

func TestALimitFollowsTheOneOfItsPlaceAndName(t *testing.T) {
	const several = `
domain: edge
descriptors:
  - key: user
    rate_limits:
      - {name: short, algorithm: sliding_window_log, unit: second, requests_per_unit: 10}
      - {name: long, unit: hour, requests_per_unit: 100}
`
	tests := []struct {
		name, before, after string
		left                uint64
	}{
		{"by_name", several, strings.NewReplacer("unit: second", "unit: minute", "hour", "day").Replace(several), 4},
		{"by_name_in_another_order", several, `
domain: edge
descriptors:
  - key: user
    rate_limits:
      - {name: long, unit: day, requests_per_unit: 100}
      - {name: short, unit: minute, requests_per_unit: 10}
`, 4},
		{"by_order", ruleWith(perSecond), ruleWith(perMinute), 14},
		{"another_rule_starts_anew", ruleWith(perSecond), `
domain: edge
descriptors: [{key: user, value: a, rate_limit: {unit: minute, requests_per_unit: 7}}]`, 7},
		{"a_rule_that_shares_starts_anew", `
domain: edge
descriptors: [{key: user, value: "*", rate_limit: {unit: hour, requests_per_unit: 7}}]`, `
domain: edge
descriptors: [{key: user, value: "*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 7}}]`, 7},
		{"unlimited_in_between_starts_anew", ruleWith("unlimited: true"), ruleWith(perMinute), 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := reloading(t, tt.before)
			f.spend("user=a", 6)
			f.rules(tt.after)
			if got := f.left("user=a"); got != tt.left {
				t.Errorf("%d left; want %d", got, tt.left)
			}
		})
	}
}

func TestABanInBetweenKeepsWhatWasUsed(t *testing.T) {
	f := reloading(t, ruleWith(perSecond))
	f.spend("user=a", 20)
	f.rules(ruleWith("algorithm: token_bucket, unit: minute, requests_per_unit: 0"))
	f.spend("user=a", 1)
	f.rules(ruleWith("algorithm: token_bucket, unit: hour, requests_per_unit: 50"))
	if f.spend("user=a", 1) {
		t.Error("a denied client passed after a ban")
	}
}

func TestAFullStoreStaysInItsBoundOverAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must.Get(memstore.New(memstore.Options{MaxKeys: 300}))(t)
		defer s.Close()
		f := newFixtureOn(t, s, ruleWith(perSecond), limiter.Options{Now: time.Now})
		limits := []string{perSecond, perMinute, perHour, "unit: day, requests_per_unit: 60"}
		for round := range 12 {
			for i := range 200 {
				f.spend(fmt.Sprint("user=", i), 1+i%7)
				time.Sleep(time.Millisecond)
			}
			f.rules(ruleWith(limits[round%len(limits)]))
			if st := s.Stats(); st.Places > st.MaxKeys || st.Keys > st.Places {
				t.Fatalf("%d keys in %d places of %d", st.Keys, st.Places, st.MaxKeys)
			}
		}
		time.Sleep(72 * time.Hour)
		if st := s.Stats(); st.Keys != 0 || st.Places != 0 {
			t.Errorf("%d keys in %d places are left when all are idle", st.Keys, st.Places)
		}
	})
}
