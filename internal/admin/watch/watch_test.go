package watch

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/admin/render", "pkg/quota", "internal/top", "internal/printable", "internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store/memstore", "pkg/store", "proto/..."},
		Never: []string{"github.com/weirproxy/weir/pkg/server", "github.com/spf13"},
	})
}

const rules = `domain: edge
descriptors:
  - {key: path, value: /cart, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: path, value: /free, rate_limit: {unlimited: true}}
  - {key: path, value: /open}
  - {key: path, value: /test, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: path, value: /vip, rate_limit: {unit: day, requests_per_unit: 1000, replaces: [{name: plan}]}}
  - {key: plan, value: gold, rate_limit: {unit: day, requests_per_unit: 1000, name: plan}}
`

// fixture is a limiter whose requests a hub sees.
type fixture struct {
	tb       testing.TB
	limiter  *limiter.Limiter
	hub      *Hub
	mu       sync.Mutex         // guards observer
	observer []limiter.Observer // at most one
	verdict  limiter.Verdict
	request  limiter.Request
	override *limiter.Override // of each descriptor
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	f := &fixture{tb: tb}
	if f.limiter, err = limiter.New(s, limiter.Options{MaxDescriptors: 5000, Now: time.Now}); err != nil {
		tb.Fatal(err)
	}
	if _, err := f.limiter.Load(descriptors.Source{Name: "rules.yaml", Data: []byte(rules)}); err != nil {
		tb.Fatal(err)
	}
	f.hub, err = New(Options{Rules: f.limiter.Rules, Observe: func(o limiter.Observer) func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.observer = append(f.observer, o)
		return func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.observer = nil
		}
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// ask decides a request as a server does. The texts of the request change afterwards.
func (f *fixture) ask(domain string, all ...string) {
	f.request.Reset()
	f.request.Domain = domain
	for _, text := range all {
		d := f.request.Add()
		d.Override = f.override
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, limiter.Entry{Key: key, Value: value})
		}
	}
	begun := time.Now()
	f.verdict.TellSource = len(f.observer) > 0
	err := f.limiter.Check(context.Background(), &f.request, &f.verdict)
	for _, o := range f.observer {
		o.Observe(limiter.Observed{Begun: begun, Took: 1500, Request: &f.request, Verdict: &f.verdict, Err: err})
	}
}

func (f *fixture) watch(in *adminv1.WatchRequest) *Watcher {
	f.tb.Helper()
	w, err := f.hub.Subscribe(in)
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(w.Close)
	return w
}

func next(tb testing.TB, w *Watcher) *adminv1.WatchResponse {
	tb.Helper()
	m, err := w.Next(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func TestAWatcherSeesEachRequestAsItWasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		w := f.watch(&adminv1.WatchRequest{})
		at := time.Now()
		f.ask("edge", "path=/cart", "pathh=/cart")
		f.ask("edge", "path=/cart")
		f.ask("edge", "path=/cart")
		f.ask("egde", "path=/cart")
		f.ask("edge")
		f.request.Domain, f.request.Descriptors[:1][0].Entries[:1][0] = "gone", limiter.Entry{Key: "gone", Value: "gone"}
		got := next(t, w)
		if len(got.GetRequests()) != 5 || got.GetLost() != 0 || got.GetLeftOut() != 0 {
			t.Fatalf("got %v; want 5 requests", got)
		}
		limit := `limits { key: "4:edge|4:path=5:/cart#fixed_window/1d" %s source: "memory"
			limit { algorithm: "fixed_window" requests_per_unit: 2 period { seconds: 86400 } burst: 2 count_rejected: true unit: "day" unit_multiplier: 1 } }`
		rule := `rule: "path=/cart" file: "rules.yaml" line: 3 `
		cart := `entries { key: "path" value: "/cart" } hits: 1 `
		want := []string{
			`domain: "edge" descriptors { ` + cart + rule + `outcome: OUTCOME_OK ` + fmt.Sprintf(limit, `allowed: true remaining: 1 retry_after {} reset_after { seconds: 86400 }`) + `}
			 descriptors { entries { key: "pathh" value: "/cart" } hits: 1 outcome: OUTCOME_UNMATCHED nearest_miss { file: "rules.yaml" line: 1
				beside: ["path=/cart", "path=/free", "path=/open", "path=/test", "path=/vip", "plan=gold"]
				why: "key \"pathh\": this level has path=/cart, path=/free, path=/open, path=/test, path=/vip, plan=gold" } }`,
			`domain: "edge" descriptors { ` + cart + rule + `outcome: OUTCOME_OK ` + fmt.Sprintf(limit, `allowed: true retry_after {} reset_after { seconds: 86400 }`) + `}`,
			`domain: "edge" over_limit: true descriptors { ` + cart + rule + `outcome: OUTCOME_OVER_LIMIT ` + fmt.Sprintf(limit, `retry_after { seconds: 86400 } reset_after { seconds: 86400 }`) + `}`,
			`domain: "egde" descriptors { ` + cart + `outcome: OUTCOME_NO_DOMAIN nearest_miss { beside: "edge" why: "domain \"egde\": the rules have edge" } }`,
			`domain: "edge" error: "rate limit descriptor list must not be empty"`,
		}
		for i, text := range want {
			one := new(adminv1.WatchedRequest)
			if err := prototext.Unmarshal([]byte(text), one); err != nil {
				t.Fatal(err)
			}
			if r := got.GetRequests()[i]; !r.GetAt().AsTime().Equal(at) || r.GetTook().AsDuration() != 1500 {
				t.Errorf("request %d: at %v, took %v; want %v, 1.5µs", i, r.GetAt().AsTime(), r.GetTook().AsDuration(), at)
			}
			ignore := protocmp.IgnoreFields(one, "at", "took")
			if diff := cmp.Diff(one, got.GetRequests()[i], protocmp.Transform(), ignore); diff != "" {
				t.Errorf("request %d (-want +got):\n%s", i, diff)
			}
		}
	})
}

// The limits of overrides, tables and grants are in memory of the verdict.
func TestAWatcherKeepsTheNumbersOfAnOverride(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		w := f.watch(&adminv1.WatchRequest{})
		for _, n := range []uint32{5, 6} {
			f.override = &limiter.Override{Requests: n, Unit: descriptors.Hour}
			f.ask("edge", "path=/cart")
		}
		for i, r := range next(t, w).GetRequests() {
			d := r.GetDescriptors()[0]
			if got := d.GetLimits()[0].GetLimit().GetRequestsPerUnit(); got != uint32(5+i) || !d.GetOverride() {
				t.Errorf("request %d: got a limit of %d, override %v; want an override of %d", i, got, d.GetOverride(), 5+i)
			}
		}
	})
}

func TestAWatchedRequestNamesItsGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		w := f.watch(&adminv1.WatchRequest{})
		grant := func(id, value string, gives limiter.Gives) *limiter.Grant {
			return &limiter.Grant{ID: id, Domain: "edge", Entries: []limiter.Entry{{Key: "path", Value: value}}, Gives: gives, Requests: 7, Until: time.Now().Add(time.Hour)}
		}
		f.limiter.ChangeGrants(nil, []*limiter.Grant{grant("more", "/cart", limiter.GivesRequests), grant("free", "/vip", limiter.GivesUnlimited)})
		f.ask("edge", "path=/cart", "path=/vip", "path=/test")
		all := next(t, w).GetRequests()[0].GetDescriptors()
		for i, want := range []struct {
			grant    string
			limits   int
			requests uint32
		}{{"more", 1, 7}, {"free", 0, 0}, {"", 1, 0}} {
			d := all[i]
			if d.GetGrant() != want.grant || len(d.GetLimits()) != want.limits {
				t.Errorf("descriptor %d: got %v; want %d limits and the grant %q", i, d, want.limits, want.grant)
			}
			for _, l := range d.GetLimits() {
				if l.GetGrant() != want.grant || l.GetLimit().GetRequestsPerUnit() != want.requests {
					t.Errorf("descriptor %d: got the limit %v; want %d requests and the grant %q", i, l, want.requests, want.grant)
				}
			}
		}
	})
}
