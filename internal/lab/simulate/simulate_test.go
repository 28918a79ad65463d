package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

func load(tb testing.TB, document string) *descriptors.Rules {
	tb.Helper()
	rules := must.First(descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(document)}}, descriptors.Options{}))(tb)
	return rules
}

// simulation returns a simulation of documents; no second one compares with nothing.
func simulation(tb testing.TB, o Options, documents ...string) *Simulation {
	tb.Helper()
	o.Rules = load(tb, documents[0])
	if len(documents) > 1 {
		o.Against = load(tb, documents[1])
	}
	s := must.Get(New(o))(tb)
	tb.Cleanup(s.Close)
	return s
}

const start = algorithms.Instant(1_800_000_000 * time.Second)

func ask(s *Simulation, after time.Duration, d limiter.Descriptor) {
	s.Decide(&records.Record{At: start + algorithms.Instant(after), Request: limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{d}}})
}

func entry(key, value string) []limiter.Entry { return []limiter.Entry{{Key: key, Value: value}} }

const (
	perMinute2 = "domain: edge\ndescriptors:\n- {key: client, rate_limit: {unit: minute, requests_per_unit: 2}}\n"
	perMinute3 = "domain: edge\ndescriptors:\n- {key: client, rate_limit: {unit: minute, requests_per_unit: 3}}\n"
)

func TestASimulationComparesTwoSetsOfRules(t *testing.T) {
	s := simulation(t, Options{}, perMinute2, perMinute3)
	for i := range 5 {
		ask(s, time.Duration(i)*time.Second, limiter.Descriptor{Entries: entry("client", "alice")})
	}
	ask(s, 6*time.Second, limiter.Descriptor{Entries: entry("client", "bob")})
	ask(s, 7*time.Second, limiter.Descriptor{Entries: entry("path", "/")})
	ask(s, time.Hour, limiter.Descriptor{Entries: entry("client", "alice")})
	want := Result{
		Requests: 8, From: time.Unix(1_800_000_000, 0).UTC(), To: time.Unix(1_800_003_600, 0).UTC(),
		Denials: Denials{Denied: 3, DeniedBefore: 2, NewlyDenied: 1},
		Rules: []Rule{
			{
				Domain: "edge", Rule: "client", Kind: "rule", File: "rules.yaml", Line: 3, Requests: 7, Hits: 7,
				Denials: Denials{Denied: 3, DeniedBefore: 2, NewlyDenied: 1}, KeysDenied: 1, KeysAffected: 1, Worst: []Key{{"client=alice", 3, 2}},
			},
			{Domain: "edge", Kind: "no rule", Requests: 1, Hits: 1, Worst: []Key{}},
		},
	}
	got := s.Result()
	must.Match(t, "result", want, got)
	if diff := cmp.Diff([]Excess{{"all requests", 1.0 / 8}, {"edge client", 1.0 / 7}}, got.Exceeds(0.1)); diff != "" {
		t.Errorf("exceeds 10%%: %s", diff)
	}
	if all := got.Exceeds(0.15); len(all) != 0 {
		t.Errorf("exceeds 15%%: %v", all)
	}
}

// Hits, probes, refunds and overrides count as they do in a service.
func TestHitsProbesRefundsAndOverrides(t *testing.T) {
	const rules = "domain: edge\ndescriptors:\n- {key: client, rate_limit: {unit: minute, requests_per_unit: 10, count_rejected: false}}\n"
	s := simulation(t, Options{}, rules)
	alice := entry("client", "alice")
	for _, step := range []struct {
		d      limiter.Descriptor
		denied uint64 // so far
	}{
		{limiter.Descriptor{Entries: alice, Hits: 9}, 0},
		{limiter.Descriptor{Entries: alice, Hits: 2}, 1},
		{limiter.Descriptor{Entries: alice, Probe: true}, 1},
		{limiter.Descriptor{Entries: alice, Hits: 5, Refund: true}, 1},
		{limiter.Descriptor{Entries: alice, Hits: 6}, 1},
		{limiter.Descriptor{Entries: alice}, 2},
		{limiter.Descriptor{Entries: alice, Override: &limiter.Override{Requests: 5, Unit: descriptors.Hour}, Hits: 6}, 3},
	} {
		ask(s, 0, step.d)
		if got := s.Result().Denied; got != step.denied {
			t.Errorf("after %+v: %d denied, want %d", step.d, got, step.denied)
		}
	}
	s.Decide(&records.Record{At: start, Request: limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{
		{Entries: entry("other", "x"), Override: &limiter.Override{Requests: 0, Unit: descriptors.Second}},
		{Entries: alice, Override: &limiter.Override{Unit: descriptors.UnitUnknown}},
	}}})
	r := s.Result()
	if r.Refused != 1 || r.Refusal == "" || r.Rules[0].Hits != 9+2+5+6+1-5+1+5 {
		t.Errorf("%+v", r)
	}
	ask(s, 0, limiter.Descriptor{Entries: entry("other", "x"), Override: &limiter.Override{Requests: 0, Unit: descriptors.Second}})
	if r = s.Result(); r.Rules[1].Kind != "override" || r.Rules[1].Denied != 1 || r.Rules[1].Worst[0].Key != "other=x" {
		t.Errorf("an override that meets no rule: %+v", r.Rules)
	}
}

// A begin holds until its end, or until at_most in virtual time.
func TestHoldersAreReplayed(t *testing.T) {
	const rules = "domain: edge\ndescriptors:\n- key: model\n  rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: request, end: request_done, at_most: 60s}}\n"
	s := simulation(t, Options{}, rules)
	hold := func(key, name string) []limiter.Entry {
		return append(entry("model", "m"), limiter.Entry{Key: key, Value: name})
	}
	for _, step := range []struct {
		after  time.Duration
		entry  []limiter.Entry
		denied uint64 // so far
	}{
		{0, hold("request", "a"), 0},
		{time.Second, hold("request", "b"), 1},
		{2 * time.Second, hold("request_done", "a"), 1},
		{3 * time.Second, hold("request", "c"), 1},
		{62 * time.Second, hold("request", "d"), 2},
		{63 * time.Second, hold("request", "e"), 2}, // c has run out
	} {
		ask(s, step.after, limiter.Descriptor{Entries: step.entry})
		if got := s.Result().Denied; got != step.denied {
			t.Errorf("at %v %v: %d denied, want %d", step.after, step.entry, got, step.denied)
		}
	}
}

func TestShadowedAndRecordedAnswersAreCounted(t *testing.T) {
	const rules = "domain: edge\ndescriptors:\n- {key: client, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}\n"
	s := simulation(t, Options{}, rules)
	for i := range 3 {
		s.Decide(&records.Record{At: start, Answer: records.Answer(i), Request: limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{{Entries: entry("client", "a")}}}})
	}
	if r := s.Result(); r.Denied != 0 || r.Rules[0].Shadowed != 2 || r.Recorded != 2 || r.RecordedDenied != 1 {
		t.Errorf("%+v", r)
	}
}

// An earlier instant counts as the last one: no time comes back, and no window.
func TestTimeDoesNotGoBack(t *testing.T) {
	s := simulation(t, Options{}, perMinute2)
	for range 3 {
		ask(s, time.Hour, limiter.Descriptor{Entries: entry("client", "a")})
		ask(s, 0, limiter.Descriptor{Entries: entry("client", "a")})
	}
	if r := s.Result(); r.Denied != 4 || r.To.Sub(r.From) != time.Hour && !r.From.Equal(r.To) {
		t.Errorf("%+v", r)
	}
}

// Keys, domains and memory have bounds, and the result says where one was reached.
func TestASimulationIsBounded(t *testing.T) {
	const ban = "domain: edge\ndescriptors:\n- {key: client, rate_limit: {unit: minute, requests_per_unit: 0}}\n- {key: free, rate_limit: {unit: day, requests_per_unit: 9}}\n"
	s := simulation(t, Options{MaxTracked: 10, MaxKeys: 100}, ban)
	for i := range 5000 {
		ask(s, 0, limiter.Descriptor{Entries: entry("client", fmt.Sprint(i))})
		ask(s, 0, limiter.Descriptor{Entries: entry("free", fmt.Sprint(i))})
		s.Decide(&records.Record{At: start, Request: limiter.Request{Domain: fmt.Sprint(i), Descriptors: []limiter.Descriptor{{}}}})
	}
	r := s.Result()
	rule := r.Rules[0]
	if rule.Denied != 5000 || rule.KeysDenied != 10 || !rule.AtLeast || len(rule.Worst) != 10 || len(r.Rules) != 2+maxRest+1 || r.Evicted == 0 {
		t.Errorf("%d rules, the first: %+v, %d evicted", len(r.Rules), rule, r.Evicted)
	}
	last := r.Rules[len(r.Rules)-1]
	if last.Domain != otherDomains || last.Requests != 5000-maxRest {
		t.Errorf("the last: %+v", last)
	}
}

// Keys that are idle by virtual time make room, however fast that passes.
func TestIdleKeysTakeNoRoom(t *testing.T) {
	s := simulation(t, Options{MaxKeys: 1000}, perMinute2)
	for i := range 100_000 { // 600 of them in a window
		ask(s, time.Duration(i)*100*time.Millisecond, limiter.Descriptor{Entries: entry("client", fmt.Sprint(i))})
	}
	if r := s.Result(); r.Evicted != 0 {
		t.Errorf("%d keys were forgotten early", r.Evicted)
	}
}

// A sweep visits all keys. So each descriptor pays for few visits, however many keys there are.
func TestSweepsAreRareIfThereAreManyKeys(t *testing.T) {
	race.Without(t)
	const perDay = "domain: edge\ndescriptors:\n- {key: client, rate_limit: {unit: day, requests_per_unit: 2}}\n"
	s := simulation(t, Options{}, perDay)
	sweeps, visits, last := 0, 0, s.swept
	const many = 400_000
	for i := range many { // all of them live
		ask(s, time.Duration(i)*100*time.Millisecond, limiter.Descriptor{Entries: entry("client", fmt.Sprint(i))})
		if s.swept != last {
			sweeps, visits, last = sweeps+1, visits+i, s.swept
		}
	}
	if sweeps < 3 || visits > 3*many {
		t.Errorf("%d sweeps visited %d keys for %d requests", sweeps, visits, many)
	}
}

// A simulation answers as a service in real time does.
func TestASimulationDecidesAsAServiceInRealTime(t *testing.T) {
	race.Without(t)
	const rules = `
domain: edge
descriptors:
- {key: a, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 10, burst: 20}}
- {key: b, rate_limit: {algorithm: sliding_window_log, unit: minute, requests_per_unit: 10}}
- {key: c, rate_limit: {algorithm: sliding_window_counter, unit: hour, requests_per_unit: 30}}
- {key: d, rate_limits: [{unit: second, requests_per_unit: 2}, {unit: day, requests_per_unit: 100}]}
- {key: e, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 4}}
- {key: f, rate_limit: {algorithm: concurrency, max_in_flight: 3, hold: {begin: r, end: rd, at_most: 60s}}}
`
	synctest.Test(t, func(t *testing.T) {
		s := simulation(t, Options{MaxKeys: 400}, rules) // a sweep each 100 descriptors
		store := must.Get(memstore.New(memstore.Options{}))(t)
		defer store.Close()
		l := must.Get(limiter.New(store, limiter.Options{}))(t)
		l.SetRules(load(t, rules))
		r := rand.New(rand.NewPCG(1, 2))
		denied := uint64(0)
		for range 20_000 {
			time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
			q := limiter.Request{Domain: "edge", Hits: uint32(r.IntN(4))}
			for range 1 + r.IntN(2) {
				d := limiter.Descriptor{Entries: entry(string(rune('a'+r.IntN(6))), fmt.Sprint(r.IntN(2))), Refund: r.IntN(20) == 0}
				if d.Entries[0].Key == "f" {
					d.Entries = append(d.Entries, limiter.Entry{Key: [...]string{"r", "rd"}[r.IntN(2)], Value: fmt.Sprint(r.IntN(10))})
				}
				q.Descriptors = append(q.Descriptors, d)
			}
			var v limiter.Verdict
			must.Do(t, l.Check(context.Background(), &q, &v))
			if v.OverLimit {
				denied++
			}
			s.Decide(&records.Record{At: algorithms.Instant(time.Now().UnixNano()), Request: q})
			if got := s.Result().Denied; got != denied {
				t.Fatalf("%+v: %d denied, the service denied %d", q, got, denied)
			}
		}
		if denied < 1000 {
			t.Errorf("only %d were denied", denied)
		}
	})
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{
			"internal/lockfile", "internal/metrics", "internal/regular", "internal/lab", "internal/lab/records", "internal/top", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "pkg/store/memstore",
		},
		Never: []string{"google.golang.org/grpc", "github.com/envoyproxy", "github.com/redis", "github.com/spf13"},
	})
}
