package limiter_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/limiter"
)

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
