package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/weirproxy/weir/internal/deptest"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/render", "internal/top", "internal/spelling", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "proto/..."},
		Never: []string{"github.com/weirproxy/weir/pkg/server", "github.com/weirproxy/weir/pkg/store/memstore", "github.com/spf13"},
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
	encoded, err := w.Next(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return decode(tb, encoded)
}

// decode decodes a message, which must be as package proto encodes it.
func decode(tb testing.TB, encoded Message) *adminv1.WatchResponse {
	tb.Helper()
	m := new(adminv1.WatchResponse)
	err := proto.Unmarshal(encoded, m)
	again, failed := proto.Marshal(m)
	if err := errors.Join(err, failed); err != nil || !bytes.Equal(encoded, again) {
		tb.Fatalf("%v: the message %v is encoded as\n%x; want\n%x", err, m, encoded, again)
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
			if got := r.GetDescriptors()[0].GetLimits()[0].GetLimit().GetRequestsPerUnit(); got != uint32(5+i) {
				t.Errorf("request %d: got a limit of %d, want %d", i, got, 5+i)
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

func TestFiltersChooseRequestsByOneDescriptor(t *testing.T) {
	f := newFixture(t)
	all := [][]string{
		{"edge", "path=/cart"},
		{"edge", "path=/free"},
		{"edge", "path=/open"},
		{"edge", "path=/test"},
		{"edge", "path=/none,user=a"},
		{"edge", "path=/vip", "plan=gold"},
		{"other", "path=/cart"},
		{"edge"},
		{"edge", "=x"},
		{"edge", "path=/cart"},
		{"edge", "path=/cart"},
	}
	for _, c := range []struct {
		filter string
		want   []int
	}{
		{``, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		{`domain: "other"`, []int{6}},
		{`domain: "nonsense"`, nil},
		{`rule: "path=/cart"`, []int{0, 9, 10}},
		{`rule: "plan=gold"`, []int{5}},
		{`entries { key: "path" }`, []int{0, 1, 2, 3, 4, 5, 6, 9, 10}},
		{`entries { key: "path" value: "/none" } entries { key: "user" value: "a" }`, []int{4}},
		{`entries { key: "path" value: "/vip" } entries { key: "plan" }`, nil}, // of one descriptor
		{`outcomes: OUTCOME_OK`, []int{0, 5, 9}},
		{`outcomes: OUTCOME_OVER_LIMIT`, []int{10}},
		{`outcomes: OUTCOME_SHADOWED`, []int{3}},
		{`outcomes: OUTCOME_UNLIMITED`, []int{1}},
		{`outcomes: OUTCOME_REPLACED`, []int{5}},
		{`outcomes: OUTCOME_NOT_LIMITED`, []int{2}},
		{`outcomes: OUTCOME_UNMATCHED outcomes: OUTCOME_NO_DOMAIN`, []int{4, 6}},
		{`outcomes: OUTCOME_FAILED`, []int{7, 8}},
		{`outcomes: OUTCOME_OK rule: "plan=gold"`, nil}, // another descriptor of the request is OK
	} {
		in := new(adminv1.WatchRequest)
		if err := prototext.Unmarshal([]byte(c.filter), in); err != nil {
			t.Fatal(err)
		}
		w := f.watch(in)
		var got []int
		for i, one := range all {
			f.ask(one[0], one[1:]...)
			if taken, _ := w.take(); len(taken) > 0 {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got the requests %v, want %v", c.filter, got, c.want)
		}
		w.Close()
		if _, _, err := f.limiter.Reset(t.Context(), &limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{{Entries: []limiter.Entry{{Key: "path", Value: "/cart"}}}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFilterOutOfBoundsIsRefused(t *testing.T) {
	f := newFixture(t)
	many := make([]*adminv1.Entry, maxFilterEntries+1)
	for i := range many {
		many[i] = &adminv1.Entry{Key: "k"}
	}
	for _, c := range []struct {
		in   *adminv1.WatchRequest
		want string
	}{
		{&adminv1.WatchRequest{Entries: []*adminv1.Entry{{Value: "v"}}}, "entries[0].key: must not be empty"},
		{&adminv1.WatchRequest{Entries: many}, "entries: 17 are given, must be at most 16"},
		{&adminv1.WatchRequest{Domain: strings.Repeat("x", 5000)}, "domain: has 5000 bytes, must have at most 4096"},
		{&adminv1.WatchRequest{Outcomes: []adminv1.Outcome{0}}, "outcomes[0]: 0: must be an outcome from 1 to 9"},
		{&adminv1.WatchRequest{Outcomes: []adminv1.Outcome{-1}}, "outcomes[0]: -1: must be an outcome from 1 to 9"},
		{&adminv1.WatchRequest{Outcomes: []adminv1.Outcome{70}}, "outcomes[0]: 70: must be an outcome from 1 to 9"},
		{&adminv1.WatchRequest{MaxPerSecond: 100_001}, "max_per_second: 100001: must be at most 100000"},
	} {
		_, err := f.hub.Subscribe(c.in)
		if invalid := new(InvalidError); !errors.As(err, &invalid) || err.Error() != c.want {
			t.Errorf("got %v; want %s", err, c.want)
		}
	}
}

func TestAThousandWatchersAreRefusedAfterTheMost(t *testing.T) {
	f := newFixture(t)
	var all []*Watcher
	for i := range 1000 {
		w, err := f.hub.Subscribe(&adminv1.WatchRequest{})
		if want := i < MaxWatchers; (err == nil) != want || err != nil && !errors.Is(err, ErrTooMany) {
			t.Fatalf("watcher %d: got %v", i, err)
		}
		if err == nil {
			all = append(all, w)
		}
	}
	f.ask("edge", "path=/cart")
	for _, w := range all {
		if taken, _ := w.take(); len(taken) != 1 {
			t.Error("a watcher has not seen the request")
		}
		w.Close()
		w.Close()
	}
	if f.observer != nil || f.hub.Watchers() != 0 {
		t.Error("the hub observes requests without watchers")
	}
	f.watch(&adminv1.WatchRequest{}) // there is room again
}

func TestAWatcherThatNeverReadsIsToldItsLossAndHoldsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		stalled, reads := f.watch(&adminv1.WatchRequest{MaxPerSecond: maxPerSecond}), f.watch(&adminv1.WatchRequest{MaxPerSecond: maxPerSecond})
		const requests = 20_000
		seen, long := 0, "user="+strings.Repeat("x", 2000)
		for i := range requests {
			f.ask("edge", long)
			time.Sleep(20 * time.Microsecond)
			for i%100 == 99 && reads.waiting.Load() > 0 {
				m := next(t, reads)
				if seen += len(m.GetRequests()); m.GetLost() > 0 || m.GetLeftOut() > 0 {
					t.Fatalf("the watcher that reads lost %d requests, and %d were left out", m.GetLost(), m.GetLeftOut())
				}
			}
		}
		if seen != requests {
			t.Errorf("the watcher that reads saw %d requests of %d", seen, requests)
		}
		held := 0
		for _, e := range stalled.queue {
			held += e.size
		}
		if held > maxShare || held < maxShare/2 || int64(held) != stalled.waiting.Load() {
			t.Errorf("the requests of the watcher that never reads take %d bytes, counted as %d; want at most %d", held, stalled.waiting.Load(), maxShare)
		}
		m := next(t, stalled)
		if got := uint64(len(m.GetRequests())+len(stalled.queue)) + m.GetLost(); got != requests || m.GetLost() == 0 || proto.Size(m) > 2*maxMessage {
			t.Errorf("%d requests were seen or lost, %d of them lost, in a message of %d bytes; want %d and a small message", got, m.GetLost(), proto.Size(m), requests)
		}
	})
}

func TestARequestThatIsTooLargeToShowCountsAsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		w := f.watch(&adminv1.WatchRequest{})
		f.ask("edge", "user="+strings.Repeat("x", maxEvent))
		f.ask("edge", slices.Repeat([]string{"user=a"}, 5000)...)
		if m := next(t, w); len(m.GetRequests()) != 0 || m.GetLost() != 2 {
			t.Errorf("got %d requests and %d lost; want 0 and 2", len(m.GetRequests()), m.GetLost())
		}
	})
}

func TestTheRateOfAWatcherIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		slow, usual, sampled := f.watch(&adminv1.WatchRequest{MaxPerSecond: 2}), f.watch(&adminv1.WatchRequest{}), f.watch(&adminv1.WatchRequest{OneIn: 10, MaxPerSecond: maxPerSecond})
		for range 10_000 { // one in 500 µs
			f.ask("edge", "path=/free")
			time.Sleep(500 * time.Microsecond)
		}
		for _, c := range []struct {
			name        string
			w           *Watcher
			least, most int
			leftOut     int
		}{{"2 per second", slow, 10, 11, 9989}, {"1000 per second", usual, 5000, 5101, 4899}, {"one in ten", sampled, 800, 1200, 0}} {
			n := len(c.w.queue)
			if leftOut := int(c.w.leftOut.Load()); n < c.least || n > c.most || leftOut < c.leftOut || c.leftOut > 0 && leftOut+n != 10_000 {
				t.Errorf("%s: in 5 s %d were shown and %d left out; want %d to %d", c.name, n, leftOut, c.least, c.most)
			}
		}
	})
}

func TestWatchersComeAndGoWhileRequestsAreAnswered(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	var watching, asking sync.WaitGroup
	for range 2 { // each asks with an own request
		asking.Go(func() {
			own := &fixture{limiter: f.limiter}
			for ctx.Err() == nil {
				f.mu.Lock()
				own.observer = slices.Clone(f.observer)
				f.mu.Unlock()
				own.ask("edge", "path=/free", "pathh=/free")
			}
		})
	}
	for range 4 {
		watching.Go(func() {
			for range 5 {
				w, err := f.hub.Subscribe(&adminv1.WatchRequest{MaxPerSecond: maxPerSecond})
				if err != nil {
					t.Error(err)
					return
				}
				encoded, err := w.Next(ctx)
				m := decode(t, encoded)
				if err != nil || len(m.GetRequests()) == 0 || m.GetRequests()[0].GetDescriptors()[1].GetNearestMiss().GetBeside()[0] != "path=/cart" {
					t.Errorf("got %v, %v; want requests", m, err)
				}
				w.Close()
			}
		})
	}
	watching.Wait()
	cancel()
	asking.Wait()
}

func TestNextEndsWithItsContext(t *testing.T) {
	w := newFixture(t).watch(&adminv1.WatchRequest{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if m, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v; want the error of the context", m, err)
	}
}
