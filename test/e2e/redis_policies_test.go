package e2e

import (
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func TestWithoutRedisEachDescriptorGoesByItsOnStoreError(t *testing.T) {
	t.Parallel()
	const rules = `
domain: e2e
descriptors:
  - {key: unset, rate_limit: {requests_per_unit: 6, unit: year}}
  - {key: local, on_store_error: local, rate_limit: {requests_per_unit: 6, unit: year, count_rejected: false}}
  - {key: allow, on_store_error: allow, rate_limit: {requests_per_unit: 2, unit: year}}
  - {key: deny, on_store_error: deny, rate_limit: {requests_per_unit: 2, unit: year}}
  - {key: shadow, on_store_error: deny, shadow_mode: true, rate_limit: {requests_per_unit: 2, unit: year}}
`
	r := startRedis(t, parts.RedisOptions{})
	f := &fleet{}
	for _, policy := range []string{"local", "allow", "deny"} {
		f.start(t, rules, urlOf(r.Address()), "--on-store-error="+policy, "--fleet-size=3")
	}
	f.awaitState(t, "closed")
	r.Kill()
	for i, s := range f.sidecars {
		// Errors enough for the breaker to open.
		eventually(t, func() string {
			if got := f.clients[i].outcome(t.Context(), questions("allow", "warm-up")); got != "OK" {
				t.Errorf("allow: got %s", got)
			}
			if s.metric(t, "weir_store_state", `state="open"`) != 1 {
				return "the breaker is not open"
			}
			return ""
		})
	}

	const ok, over = "OK", "OVER_LIMIT"
	for _, test := range []struct {
		name      string
		keys      []string
		want      [3]string // of three requests
		byDefault map[string][3]string
	}{
		{name: "local", keys: []string{"local"}, want: [3]string{ok, ok, over}},
		{name: "allow", keys: []string{"allow"}, want: [3]string{ok, ok, ok}},
		{name: "deny", keys: []string{"deny"}, want: [3]string{over, over, over}},
		{name: "deny in shadow mode", keys: []string{"shadow"}, want: [3]string{ok, ok, ok}},
		{name: "local and allow", keys: []string{"local", "allow"}, want: [3]string{ok, ok, over}},
		{name: "local, allow and deny", keys: []string{"local", "allow", "deny"}, want: [3]string{over, over, over}},
		{name: "unset", keys: []string{"unset"}, byDefault: map[string][3]string{
			"local": {ok, ok, over}, "allow": {ok, ok, ok}, "deny": {over, over, over},
		}},
	} {
		for i, policy := range []string{"local", "allow", "deny"} {
			want, differs := test.byDefault[policy]
			if !differs {
				want = test.want
			}
			var pairs []string
			for _, key := range test.keys {
				pairs = append(pairs, key, test.name)
			}
			var got [3]string
			for n := range got {
				got[n] = f.clients[i].outcome(t.Context(), questions(pairs...))
			}
			if got != want {
				t.Errorf("--on-store-error=%s, %s: got %v, want %v", policy, test.name, got, want)
			}
		}
	}
	// A request that is denied takes nothing of the limits that go on.
	if got := f.clients[0].outcome(t.Context(), questions("local", "local, allow and deny")); got != ok {
		t.Errorf("local after requests that deny denied: got %s, want OK", got)
	}
	denied := f.clients[0].ask(t, 1, "deny", "x")
	if wait := denied.GetDurationUntilReset().AsDuration(); denied.GetCode().String() != over || wait <= 0 {
		t.Errorf("deny: got %s, retry after %s; want OVER_LIMIT and when to come again", denied.GetCode(), wait)
	}

	if err := r.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	f.awaitState(t, "closed")
	got := 0
	f.undisturbed(t, func(value string) { got = f.admitted(t, 2, "deny", value) })
	if got != 2 {
		t.Errorf("deny, when Redis is back: %d requests passed at three sidecars, want 2", got)
	}
	f.end(t)
}
