package limiter_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

func TestCountsSurviveAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 5}}]\n", limiter.Options{Now: time.Now})
		f.check(request("d", "a=1 hits=4"))
		f.rules("domain: d\ndescriptors: [{key: b}, {key: a, rate_limit: {unit: minute, requests_per_unit: 10}}]\n")
		if got, want := f.check(request("d", "a=1")), "OK ok:5/10"; got != want {
			t.Errorf("after the limit was raised: %s; want %s", got, want)
		}
		f.rules("domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 10}}]\n")
		if got, want := f.check(request("d", "a=1")), "OK ok:4/10"; got != want {
			t.Errorf("after the period changed: %s; want the used hits too, %s", got, want)
		}
		total := uint64(0)
		for c := range f.Counts() {
			if c.Path == "a" {
				total = c.Counts.Total().Hits[limiter.CodeOK]
			}
		}
		if total != 6 {
			t.Errorf("the rule's hits are counted as %d; want 6 through two reloads", total)
		}
	})
}

func TestRulesWhosePathsReadTheSameShareTheirCountThroughReloads(t *testing.T) {
	const same = "domain: d\ndescriptors: [{key: a=b, rate_limit: {unit: minute, requests_per_unit: 5}}, " +
		"{key: a, value: b, rate_limit: {unit: minute, requests_per_unit: 5}}]\n"
	f := newFixture(t, same)
	r := request("d", "a=b")
	other := request("d", "a=b")
	other.Descriptors[0].Entries[0] = descriptors.Entry{Key: "a=b", Value: "x"}
	for range 3 {
		f.check(r)
	}
	f.check(other)
	for range 2 {
		f.rules(same)
		for c := range f.Counts() {
			if got := c.Counts.Total().Decisions[limiter.CodeOK]; c.Path == "a=b" && got != 4 {
				t.Errorf("counted %d decisions; want the 4 of both rules", got)
			}
		}
	}
}

func TestExplainChargesNothingAndResetForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, rules)
		r := request("edge", "api_key=k", "staff=x", "path=/search", "vip=v")
		f.check(request("edge", "api_key=k"))
		for range 3 {
			all := must.Get(f.Explain(t.Context(), r))(t)
			if got := all[0].Limits; len(got) != 2 || got[0].Decision.Remaining != 0 || got[1].Decision.Remaining != 1 {
				t.Fatalf("Explain of two limits after one hit = %+v; want what one more hit would leave", got)
			}
			if got, want := all[0].Limits[1].Key, "4:edge|7:api_key=1:k#fixed_window/1d"; got != want {
				t.Errorf("key %s; want %s", got, want)
			}
			if all[1].Status.Outcome != limiter.Unlimited || all[2].Status.Outcome != limiter.Replaced || len(all[3].Limits) != 1 {
				t.Errorf("outcomes %v, %v and %d limits; want unlimited, replaced, 1", all[1].Status.Outcome, all[2].Status.Outcome, len(all[3].Limits))
			}
		}
		keys, forgotten, err := f.Reset(t.Context(), r)
		if err != nil || len(keys) != 3 || forgotten != 2 {
			t.Errorf("Reset = %q, %d, %v; want 3 keys of which 2 had a state", keys, forgotten, err)
		}
		if got, want := f.check(request("edge", "api_key=k hits=2")), "OK ok:0/2"; got != want {
			t.Errorf("after Reset: %s; want %s", got, want)
		}
	})
}

func TestCountsSayWhatWasDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, rules)
		for range 3 {
			f.check(request("edge", "path=/search hits=2", "watched=1", "staff=me"))
		}
		f.check(request("edge", "path=/search hits=2 refund"))
		f.check(request("nowhere", "a=b", "c=d"))
		f.check(request("", "a=b"))
		got := map[string]limiter.Tally{}
		for c := range f.Counts() {
			got[c.Path] = c.Counts.Total()
		}
		search := got["path=/search"]
		if search.Decisions[limiter.CodeReplaced] != 3 || search.Decisions[limiter.CodeOK] != 1 || search.Refunded != 2 {
			t.Errorf("counts of the search rule = %+v", search)
		}
		if w := got["watched"]; w.Decisions[limiter.CodeOK] != 1 || w.Decisions[limiter.CodeShadowed] != 2 || w.Hits[limiter.CodeShadowed] != 2 {
			t.Errorf("counts of the shadow rule = %+v", w)
		}
		if s := got["staff"]; s.Decisions[limiter.CodeUnlimited] != 3 {
			t.Errorf("counts of the unlimited rule = %+v", s)
		}
		want := limiter.RequestCounts{OK: 5, Failed: 1, Invalid: 1, DomainNotFound: 2}
		if diff := cmp.Diff(want, f.Requests()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}

// A rule without limits has no counts, so hits must not count there.
func TestAnOverrideOfARuleWithoutLimitsIsCountedAsOneOfNoRule(t *testing.T) {
	f := newFixture(t, "domain: d\ndescriptors: [{key: free, detailed_metric: true, rate_limit: {unlimited: true}}, {key: white}]\n")
	f.check(request("d", "free=a hits=2 override=1", "white=a override=1"))
	for c := range f.Counts() {
		got, want := c.Counts.Total().Hits, [limiter.Codes]uint64{}
		if c.Path == "override" {
			want = [limiter.Codes]uint64{limiter.CodeOK: 1, limiter.CodeOverLimit: 2}
		}
		if got != want || len(c.Counts.Values()) != 0 {
			t.Errorf("%s: hits %v, by value %v; want %v and none", c.Path, got, c.Counts.Values(), want)
		}
	}
}

func TestRequestsBeforeTheFirstRulesFailWhereTheyAreNeeded(t *testing.T) {
	f := newFixtureWith(t, "", limiter.Options{NeedRules: true})
	var v limiter.Verdict
	if err := f.Check(t.Context(), request("d", "a=1"), &v); !errors.Is(err, limiter.ErrNoRules) {
		t.Errorf("before the first rules: got %v, want ErrNoRules", err)
	}
	if _, invalid := errors.AsType[*limiter.InvalidError](f.Check(t.Context(), request("", "a=1"), &v)); !invalid {
		t.Error("a request that is not valid: want that to be said")
	}
	f.SetRules(new(descriptors.Rules))
	f.check(request("d", "a=1"))
	if diff := cmp.Diff(limiter.RequestCounts{OK: 1, Failed: 2, Invalid: 1, Early: 1, DomainNotFound: 1}, f.Requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestDetailedValuesAreBounded(t *testing.T) {
	f := newFixtureWith(t, "domain: d\ndescriptors: [{key: a, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 5}}]\n",
		limiter.Options{DetailedValues: 3})
	for i := range 100 {
		f.check(request("d", fmt.Sprint("a=", i)))
	}
	f.check(request("d", "a="+strings.Repeat("x", 1<<20)))
	for c := range f.Counts() {
		values := c.Counts.Values()
		if c.Path != "a" {
			continue
		}
		if len(values) != 4 || values[limiter.OtherValue].Decisions[limiter.CodeOK] != 98 || values["a_0"].Decisions[limiter.CodeOK] != 1 {
			t.Errorf("values = %+v; want three of their own and the others together", values)
		}
	}
}

const togetherRules = `
domain: edge
descriptors:
  - {key: free, rate_limit: {unlimited: true}}
  - {key: few, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1}
    detailed_metric: true
`

// Requests with keys of their own are decided alike alone, together and now, and counted alike.
func TestCheckAllAndCheckNowDecideAsCheckDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alone, together, now := newFixture(t, togetherRules), newFixture(t, togetherRules), newFixture(t, togetherRules)
		var q limiter.Questions
		for round := range 5 {
			var want []string
			q.All = q.All[:0]
			for i := range 12 {
				ask := func() *limiter.Request {
					return [...]*limiter.Request{
						request("edge", fmt.Sprintf("user=%d", i)),
						request("edge", fmt.Sprintf("few=%d hits=2", i), "free=x"),
						request("elsewhere", "user=a"),
						request("edge", fmt.Sprintf("shadow=%d", i), "nothing=b"),
						request("", "user=a"),
						request("edge", fmt.Sprintf("user=%d override=2", i), fmt.Sprintf("few=%d refund", i)),
					}[i%6]
				}
				var v limiter.Verdict
				want = append(want, answer(alone.Check(t.Context(), ask(), &v), &v))
				if decided, err := now.CheckNow(ask(), &v); !decided || answer(err, &v) != want[i] {
					t.Errorf("round %d, request %d: decided now %t: got %s, want %s", round, i, decided, answer(err, &v), want[i])
				}
				q.All = append(q.All, limiter.Question{Ctx: t.Context(), Request: ask(), Verdict: new(limiter.Verdict)})
			}
			got := make([]string, len(q.All))
			together.CheckAll(&q, func(indexes []int) {
				for _, i := range indexes {
					got[i] += answer(q.All[i].Err, q.All[i].Verdict)
				}
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("round %d (-alone +together):\n%s", round, diff)
			}
			if answers := slices.Compact(slices.Sorted(slices.Values(got))); len(answers) < 4 {
				t.Errorf("got the answers %q, which show little", answers)
			}
		}
		if a, b, c := alone.Requests(), together.Requests(), now.Requests(); a != b || a != c {
			t.Errorf("counts: got %+v together, %+v now, %+v alone", b, c, a)
		}
		for c := range together.Counts() {
			for d := range alone.Counts() {
				if c.Path == d.Path && c.Counts.Total() != d.Counts.Total() {
					t.Errorf("counts of %s: got %+v together, %+v alone", c.Path, c.Counts.Total(), d.Counts.Total())
				}
			}
		}
	})
}

// answer returns a decision as text.
func answer(err error, v *limiter.Verdict) string {
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("over %t", v.OverLimit)
	for _, s := range v.Statuses {
		text += fmt.Sprintf(", %v %+v", s.Outcome, s.Decision)
	}
	return text
}

const neverRules = `
domain: d
descriptors:
  - {key: bucket, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: token_bucket, burst: 4}}
  - {key: ban, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: two, rate_limits: [{unit: day, requests_per_unit: 2}, {unit: second, requests_per_unit: 1}]}
  - {key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 2, hold: {begin: begin, end: end, at_most: 1h}}}
  - {key: tokens, rate_limit: {unit: hour, requests_per_unit: 2, hold: {begin: begin, end: end, at_most: 1h}}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
`

func TestAStatusSaysThatItsHitsNeverPass(t *testing.T) {
	tests := map[string]struct {
		ask   string
		never bool
	}{
		"a wait":                               {"bucket=spent hits=3", false},
		"as many as the capacity":              {"bucket=spent hits=4", false},
		"one more than the capacity":           {"bucket=a hits=5", true},
		"the most hits":                        {"bucket=a hits=4294967295", true},
		"a ban":                                {"ban=a", true},
		"a probe of a ban":                     {"ban=a hits=0", false},
		"a refund of a ban":                    {"ban=a hits=5 refund", false},
		"another limit has the longer wait":    {"two=a hits=2", true},
		"an override":                          {"bucket=a hits=2 override=1", true},
		"a begin of more than the slots":       {"slots=a,begin=r hits=3", true},
		"a begin that waits":                   {"slots=spent,begin=r", false},
		"an end, which always passes":          {"tokens=a,end=r hits=100", false},
		"in shadow mode, which denies nothing": {"shadow=a hits=2", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, neverRules)
				f.check(request("d", "bucket=spent hits=4", "slots=spent,begin=1 hits=2"))
				f.check(request("d", "two=a"))
				var v limiter.Verdict
				must.Do(t, f.Check(t.Context(), request("d", test.ask), &v))
				if s := v.Statuses[0]; s.Never != test.never || s.Never && s.Decision.Allowed {
					t.Errorf("never %t, %+v; want never %t", s.Never, s.Decision, test.never)
				}
			})
		})
	}
}
