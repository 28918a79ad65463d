package limiter_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// recorder is a store that allows everything and records the charges.
type recorder struct {
	onErrors []store.OnError
	forget   func()
}

func (s *recorder) note(charges []store.Charge, decisions []algorithms.Decision) {
	s.onErrors = nil
	for i := range charges {
		s.onErrors = append(s.onErrors, charges[i].OnError)
		decisions[i] = algorithms.Decision{Allowed: true}
	}
}

func (s *recorder) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	s.note(charges, decisions)
	return true, nil
}

func (s *recorder) Peek(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	s.note(charges, decisions)
	return nil
}

func (s *recorder) Reset(context.Context, []store.Charge) (int, error) { return 0, nil }

func (s *recorder) Forget() { s.forget() }

func TestChargesSayWhatBecomesOfThemWhenTheStoreFails(t *testing.T) {
	const document = `
domain: edge
default: {unit: minute, requests_per_unit: 2, on_store_error: allow}
descriptors:
  - {key: unset, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: several
    on_store_error: allow
    rate_limits:
      - {unit: second, requests_per_unit: 1}
      - {unit: minute, requests_per_unit: 1, on_store_error: local}
      - {unit: hour, requests_per_unit: 1, on_store_error: deny}
  - {key: free, rate_limit: {unlimited: true}}
`
	for _, tt := range []struct {
		name       string
		descriptor string
		usual      store.OnError // for rules that do not say
		want       []store.OnError
	}{
		{"a rule that does not say", "unset=x", store.OnErrorDeny, []store.OnError{store.OnErrorDeny}},
		{"neither rule nor option say", "unset=x", store.OnErrorLocal, []store.OnError{store.OnErrorLocal}},
		{"each limit for itself", "several=x", store.OnErrorDeny, []store.OnError{store.OnErrorAllow, store.OnErrorLocal, store.OnErrorDeny}},
		{"the default limit of the domain", "other=x", store.OnErrorDeny, []store.OnError{store.OnErrorAllow}},
		{"an override is as the rule's first limit", "several=x override=5", store.OnErrorDeny, []store.OnError{store.OnErrorAllow}},
		{"an override of a rule that does not say", "unset=x override=5", store.OnErrorDeny, []store.OnError{store.OnErrorDeny}},
		{"an override where no rule matches", "other=x override=5", store.OnErrorDeny, []store.OnError{store.OnErrorDeny}},
		{"an override of an unlimited rule", "free=x override=5", store.OnErrorDeny, []store.OnError{store.OnErrorDeny}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &recorder{forget: func() {}}
			f := newFixtureOn(t, storetest.Of(s), document, limiter.Options{OnStoreError: tt.usual})
			r := request("edge", tt.descriptor)
			f.check(r)
			if diff := cmp.Diff(tt.want, s.onErrors); diff != "" {
				t.Errorf("Take (-want +got):\n%s", diff)
			}
			must.Get(f.Explain(t.Context(), r))(t)
			if diff := cmp.Diff(tt.want, s.onErrors); diff != "" {
				t.Errorf("Peek (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnOverrideIsShownWithWhatItTookFromTheRule(t *testing.T) {
	f := newFixture(t, "domain: edge\ndescriptors: [{key: a, on_store_error: deny, rate_limit: {unit: second, requests_per_unit: 1}}]")
	for _, text := range []string{"a=x override=5", "a=x"} {
		all := must.Get(f.Explain(t.Context(), request("edge", text)))(t)
		if got := all[0].Limits[0].Limit.OnStoreError; got != descriptors.OnStoreErrorDeny {
			t.Errorf("%s: got %v, want deny", text, got)
		}
	}
}

func TestAStoreThatRemembersForgetsOnceNewRulesAreInForce(t *testing.T) {
	s := new(recorder)
	l := must.Get(limiter.New(storetest.Of(s), limiter.Options{}))(t)
	calls := 0
	s.forget = func() {
		calls++
		var v limiter.Verdict
		if err := l.Check(t.Context(), request("edge", "a=x"), &v); err != nil || v.Statuses[0].Outcome != limiter.Limited {
			t.Errorf("told to forget before the rules are in force: %+v, %v", v.Statuses, err)
		}
	}
	rules, _, err := descriptors.Load([]descriptors.Source{{Data: []byte("domain: edge\ndefault: {unit: second, requests_per_unit: 1}")}}, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l.SetRules(rules)
	if calls != 1 {
		t.Errorf("told to forget %d times, want once: rules were set once and refused once", calls)
	}
}

func TestNewRefusesAnUnknownChoiceOnStoreErrors(t *testing.T) {
	_, err := limiter.New(storetest.Of(new(recorder)), limiter.Options{OnStoreError: 3})
	if want := "on store error: 3: must be Local, Allow or Deny"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// tells is a store that tells the source of each charge by the number of its hits left: 1 left is
// the first source.
type tells struct{}

func (tells) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	for i := range charges {
		decisions[i] = algorithms.Decision{Allowed: true, Remaining: charges[i].Limit.Capacity()}
		if left := charges[i].Left; left != nil {
			*left = store.State{Source: store.Source(charges[i].Limit.Requests)}
		}
	}
	return true, nil
}

func TestAStatusTellsTheSourceOfItsDecision(t *testing.T) {
	l := newFixtureOn(t, storetest.Of(tells{}), `{domain: edge, descriptors: [
		{key: asked, rate_limit: {unit: day, requests_per_unit: 1}},
		{key: leased, rate_limits: [{unit: day, requests_per_unit: 3}, {unit: hour, requests_per_unit: 2}]},
		{key: without, rate_limit: {unit: day, requests_per_unit: 4}}]}`, limiter.Options{})
	r := request("edge", "without=x", "none=x", "leased=x", "asked=x")
	v := limiter.Verdict{TellSource: true}
	for _, tell := range []bool{true, false, true} { // the same verdict again
		v.TellSource = tell
		must.Do(t, l.Check(t.Context(), r, &v))
		want := []store.Source{store.Without, 0, store.Lease, store.Asked}
		if !tell {
			want = make([]store.Source, 4)
		}
		for i, s := range v.Statuses {
			if s.Source != want[i] {
				t.Errorf("tell %t, descriptor %d: got the source %v, want %v", tell, i, s.Source, want[i])
			}
			for c := range v.Charged(i) {
				if tell != (c.Source == store.Source(c.Limit.Requests)) {
					t.Errorf("tell %t, descriptor %d: got the source %v of a limit of %d", tell, i, c.Source, c.Limit.Requests)
				}
			}
		}
	}
}
