package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

const adminRules = `domain: edge
default: {unit: minute, requests_per_unit: 9}
descriptors:
  - key: path
    value: /a*
    descriptors:
      - key: user
        rate_limits:
          - {unit: second, requests_per_unit: 5, algorithm: token_bucket, burst: 7, name: n}
          - {unit: day, requests_per_unit: 100, name: n}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: n}]}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
`

func (f *fixture) service(t *testing.T) adminv1.AdminServiceClient {
	t.Helper()
	return adminv1.NewAdminServiceClient(dial(t, f.admin.Serve))
}

// adminDescriptor makes a descriptor of keys and values.
func adminDescriptor(keysAndValues ...string) *adminv1.Descriptor {
	d := new(adminv1.Descriptor)
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Entries = append(d.Entries, &adminv1.Entry{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return d
}

// is fails unless got is the message that text, in the text form of protobuf, stands for.
func is[M proto.Message](t *testing.T, got, want M, text string) {
	t.Helper()
	if err := prototext.Unmarshal([]byte(text), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func TestExplainTellsRuleKeyAndWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, nil)
		f.ask(t, hits(3, "path", "/about", "user", "u"))
		probe := adminDescriptor("path", "/about", "user", "u")
		probe.Hits = proto.Uint32(0)
		many := adminDescriptor("path", "/about", "user", "u")
		many.Hits = proto.Uint32(6)
		own := adminDescriptor("path", "/about", "user", "u")
		own.Limit = &adminv1.LimitOverride{RequestsPerUnit: 4, Unit: adminv1.Unit_UNIT_WEEK, UnitMultiplier: 2}
		client := f.service(t)
		var got *adminv1.ExplainResponse
		for range 2 { // Explain charges nothing
			var err error
			got, err = client.Explain(t.Context(), &adminv1.ExplainRequest{Domain: "edge", Descriptors: []*adminv1.Descriptor{probe, many, own}})
			if err != nil {
				t.Fatal(err)
			}
		}
		rule := `matched: true
			rule { domain: "edge" path: "path=/a*,user" file: "rules.yaml" line: 7 name: "n"
				limits { algorithm: "token_bucket" requests_per_unit: 5 period { seconds: 1 } burst: 7 name: "n" unit: "second" unit_multiplier: 1 }
				limits { algorithm: "fixed_window" requests_per_unit: 100 period { seconds: 86400 } burst: 100 count_rejected: true name: "n"
					unit: "day" unit_multiplier: 1 } }
			steps { key: "path" value: "/about" reason: "wildcard" pattern: "/a*" file: "rules.yaml" line: 4 }
			steps { key: "user" value: "u" reason: "key_only" file: "rules.yaml" line: 7 }`
		bucket := `limit { algorithm: "token_bucket" requests_per_unit: 5 period { seconds: 1 } burst: 7 name: "n" unit: "second" unit_multiplier: 1 }
			key: "4:edge|4:path=6:/about|4:user=1:u#token_bucket/1s" source: "memory"`
		window := `limit { algorithm: "fixed_window" requests_per_unit: 100 period { seconds: 86400 } burst: 100 count_rejected: true name: "n"
				unit: "day" unit_multiplier: 1 }
			key: "4:edge|4:path=6:/about|4:user=1:u#fixed_window/1d" source: "memory" allowed: true retry_after {} reset_after { seconds: 86400 }`
		is(t, got, new(adminv1.ExplainResponse), `
			descriptors { why: "path=/about: wildcard /a*; user=u: key only; rule path=/a*,user applies" `+rule+`
				limits { `+bucket+` allowed: true remaining: 4 retry_after {} reset_after { nanos: 600000000 } }
				limits { `+window+` remaining: 97 } }
			descriptors { why: "path=/about: wildcard /a*; user=u: key only; rule path=/a*,user applies" `+rule+`
				limits { `+bucket+` remaining: 4 retry_after { nanos: 400000000 } reset_after { nanos: 600000000 } }
				limits { `+window+` remaining: 91 } }
			descriptors { why: "path=/about: wildcard /a*; user=u: key only; the limit that came with the descriptor replaces those of rule path=/a*,user" `+rule+`
				limits { limit { algorithm: "token_bucket" requests_per_unit: 4 period { seconds: 1209600 } burst: 4 unit: "week" unit_multiplier: 2 sharing: "exact" }
					key: "4:edge|4:path=6:/about|4:user=1:u#token_bucket/14d" source: "memory"
					allowed: true remaining: 3 retry_after {} reset_after { seconds: 302400 } } }
			domain { name: "edge" file: "rules.yaml" line: 1 }`)
	})
}

func TestExplainSaysWhy(t *testing.T) {
	own := adminDescriptor("other", "x")
	own.Limit = &adminv1.LimitOverride{RequestsPerUnit: 4, Unit: adminv1.Unit_UNIT_SECOND}
	tests := []struct {
		name, domain string
		ask          []*adminv1.Descriptor
		why          string // of the first
		matched      bool
	}{
		{
			"default", "edge",
			[]*adminv1.Descriptor{adminDescriptor("path", "/a", "other", "x")},
			"path=/a: wildcard /a*; other=x: no descriptor for it here; no rule matches: the default limit of the domain applies", true,
		},
		{
			"no_limit", "edge",
			[]*adminv1.Descriptor{adminDescriptor("path", "/a")},
			"path=/a: wildcard /a*; rule path=/a* has no limit: not limited", true,
		},
		{"unlimited", "edge", []*adminv1.Descriptor{adminDescriptor("free", "x")}, "free=x: key only; rule free is unlimited: always passes", true},
		{
			"replaced", "edge",
			[]*adminv1.Descriptor{adminDescriptor("path", "/a", "user", "u"), adminDescriptor("free", "x")},
			`path=/a: wildcard /a*; user=u: key only; rule path=/a*,user is dropped: another rule that the request matches replaces "n"`, true,
		},
		{
			"shadow", "edge",
			[]*adminv1.Descriptor{adminDescriptor("shadow", "x")},
			"shadow=x: key only; rule shadow applies, in shadow mode: it decides and counts, and always reports OK", true,
		},
		{
			"quota", "edge",
			[]*adminv1.Descriptor{adminDescriptor("quota", "x")},
			"quota=x: key only; rule quota applies, as a quota: a request is denied when all its quotas are spent", true,
		},
		{"no_domain", "elsewhere", []*adminv1.Descriptor{adminDescriptor("path", "/a")}, "there are no rules for this domain: not limited", false},
		{
			"nothing_matches", "bare",
			[]*adminv1.Descriptor{adminDescriptor("path", "/a")},
			"path=/a: no descriptor for it here; no rule matches, and the domain has no default: not limited", false,
		},
		{
			"override_alone", "bare",
			[]*adminv1.Descriptor{own},
			"other=x: no descriptor for it here; no rule matches: the limit that came with the descriptor applies", false,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, adminRules, nil)
				rules, _, err := descriptors.Load([]descriptors.Source{
					{Name: "rules.yaml", Data: []byte(adminRules)}, {Name: "bare.yaml", Data: []byte("domain: bare\n")},
				}, descriptors.Options{})
				if err != nil {
					t.Fatal(err)
				}
				f.setRules(rules)
				got, err := f.service(t).Explain(t.Context(), &adminv1.ExplainRequest{Domain: test.domain, Descriptors: test.ask})
				if err != nil {
					t.Fatal(err)
				}
				if d := got.GetDescriptors()[0]; d.GetWhy() != test.why || d.GetMatched() != test.matched || (d.GetRule() != nil) != test.matched {
					t.Errorf("Explain: got %q, matched %v, rule %v; want %q, matched %v", d.GetWhy(), d.GetMatched(), d.GetRule(), test.why, test.matched)
				}
			})
		})
	}
}

func TestResetForgetsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, nil)
		f.ask(t, hits(3, "path", "/about", "user", "u"))
		f.ask(t, hits(3, "path", "/about", "user", "other"))
		got, err := f.service(t).Reset(t.Context(), &adminv1.ResetRequest{
			Domain: "edge", Descriptors: []*adminv1.Descriptor{adminDescriptor("path", "/about", "user", "u")},
		})
		if err != nil {
			t.Fatal(err)
		}
		is(t, got, new(adminv1.ResetResponse), `forgotten: 2
			keys: "4:edge|4:path=6:/about|4:user=1:u#token_bucket/1s" keys: "4:edge|4:path=6:/about|4:user=1:u#fixed_window/1d"`)
		left := []uint32{
			f.ask(t, hits(0, "path", "/about", "user", "u")).GetStatuses()[0].GetLimitRemaining(),
			f.ask(t, hits(0, "path", "/about", "user", "other")).GetStatuses()[0].GetLimitRemaining(),
		}
		if want := []uint32{7, 4}; !slices.Equal(left, want) {
			t.Errorf("remaining after: got %d; want %d", left, want)
		}
	})
}

// failing is a store that cannot.
type failing struct{}

func (failing) Take(context.Context, []store.Charge, []algorithms.Decision) (bool, error) {
	return false, errors.New("down")
}

func (failing) Reset(context.Context, []store.Charge) (int, error) { return 0, errors.New("down") }

func TestAdminErrorsHaveTheCodesOfTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startOn(t, storetest.Of(failing{}), adminRules, nil)
		client := f.service(t)
		_, err := client.Explain(t.Context(), new(adminv1.ExplainRequest))
		if got := status.Convert(err); got.Code() != codes.InvalidArgument || len(got.Details()) != 1 {
			t.Errorf("Explain of nothing: got %v, details %v; want InvalidArgument with details", err, got.Details())
		}
		_, err = client.Reset(t.Context(), &adminv1.ResetRequest{Domain: "edge", Descriptors: []*adminv1.Descriptor{adminDescriptor("quota", "x")}})
		if got := status.Code(err); got != codes.Unavailable {
			t.Errorf("Reset without a store: got %v; want Unavailable", err)
		}
		if _, err = client.Reload(t.Context(), new(adminv1.ReloadRequest)); status.Code(err) != codes.Unimplemented {
			t.Errorf("Reload without sources: got %v; want Unimplemented", err)
		}
	})
}

func TestListRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "domain: edge\ndescriptors:\n  - {key: a, rate_limit: {period: 1500ms, requests_per_unit: 5, on_store_error: allow}}\n",
			func(o *Options) { o.Sources = []string{"rules.yaml"} })
		f.refuse("rules.yaml:9: no")
		got, err := f.service(t).ListRules(t.Context(), new(adminv1.ListRulesRequest))
		if err != nil {
			t.Fatal(err)
		}
		is(t, got, new(adminv1.ListRulesResponse), `
			domains { name: "edge" file: "rules.yaml" line: 1 rules { domain: "edge" path: "a" file: "rules.yaml" line: 3
				limits { algorithm: "fixed_window" requests_per_unit: 5 period { seconds: 1 nanos: 500000000 } burst: 5 count_rejected: true on_store_error: "allow" } } }
			loaded_at { seconds: 946684800 } sources: "rules.yaml" errors: "rules.yaml:9: no"
			hash: "`+f.limiter.Rules().Hash()+`"`)
	})
}

func TestReloadAnswersWithEveryMistake(t *testing.T) {
	mistakes := descriptors.Errors{
		{File: "a.yaml", Line: 1, Path: "x", Text: "is wrong"}, {File: "b.yaml", Line: 2, Text: "is worse"},
	}
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"loaded", nil, `loaded: true rules: 1 warnings: "w.yaml: warning: odd"`},
		{"mistakes", mistakes, `rules: 1 errors: "a.yaml:1: x: is wrong" errors: "b.yaml:2: is worse"`},
		{
			"mistakes_wrapped_and_more", errors.Join(fmt.Errorf("load rules: %w", mistakes), errors.New("open c.yaml: gone")),
			`rules: 1 errors: "a.yaml:1: x: is wrong" errors: "b.yaml:2: is worse" errors: "open c.yaml: gone"`,
		},
		{"one_error", errors.New("open a.yaml: gone"), `rules: 1 errors: "open a.yaml: gone"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f *fixture
				f = start(t, "", func(o *Options) {
					o.Reload = func(context.Context) error {
						f.setRules(load(t, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n"), descriptors.Warning{File: "w.yaml", Text: "odd"}.String())
						return test.err
					}
				})
				got, err := f.service(t).Reload(t.Context(), new(adminv1.ReloadRequest))
				if err != nil {
					t.Fatal(err)
				}
				is(t, got, new(adminv1.ReloadResponse), test.want)
			})
		})
	}
}

func TestReloadThatWasInterruptedIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, func(o *Options) { o.Reload = func(context.Context) error { return context.DeadlineExceeded } })
		if _, err := f.service(t).Reload(t.Context(), new(adminv1.ReloadRequest)); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("Reload: got %v; want DeadlineExceeded", err)
		}
	})
}

func TestListTopKeysShowsWhoHasTheMostHits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, nil)
		f.ask(t, hits(3, "path", "/about", "user", "u"))
		f.ask(t, hits(2, "path", "/about", "user", "\x1b[2J"))
		client := f.service(t)
		got, err := client.ListTopKeys(t.Context(), &adminv1.ListTopKeysRequest{Rule: "path=/a*,user", Most: 1})
		if err != nil {
			t.Fatal(err)
		}
		is(t, got, new(adminv1.ListTopKeysResponse), `tracked: 4 covers {}
			keys { key: "4:edge|4:path=6:/about|4:user=1:u#fixed_window/1d" domain: "edge" rule: "path=/a*,user" file: "rules.yaml" line: 7
				entries { key: "path" value: "/about" } entries { key: "user" value: "u" } hits: 3 used: 0.03 remaining: 97 current: true
				reset_after { seconds: 86400 } limit { algorithm: "fixed_window" requests_per_unit: 100 period { seconds: 86400 } burst: 100
					count_rejected: true name: "n" unit: "day" unit_multiplier: 1 } }`)
		for want, in := range map[string]*adminv1.ListTopKeysRequest{
			"window: 5s: must be 1m or 10m":                   {Window: durationpb.New(5 * time.Second)},
			"most: 1001: must be from 1 to 1000, or 0 for 20": {Most: 1001},
			"order: 9: is not an order":                       {Order: 9},
		} {
			if _, err := client.ListTopKeys(t.Context(), in); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != want {
				t.Errorf("got %v; want InvalidArgument %q", err, want)
			}
		}
		f = start(t, "", func(o *Options) { o.Limiter = untracked(t) })
		if _, err := f.service(t).ListTopKeys(t.Context(), &adminv1.ListTopKeysRequest{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("without tracked keys: got %v; want Unimplemented", err)
		}
	})
}

// untracked returns a limiter that tracks no keys.
func untracked(t *testing.T) *limiter.Limiter {
	t.Helper()
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	l, err := limiter.New(s, limiter.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAPanicInACallEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, func(o *Options) { o.Reload = func(context.Context) error { return boom("bug in reload") } })
		for range 2 {
			if _, err := f.service(t).Reload(t.Context(), new(adminv1.ReloadRequest)); status.Code(err) != codes.Internal {
				t.Errorf("Reload: got %v; want Internal", err)
			}
		}
		err := func() (err error) { // as package wire calls a stream
			defer f.admin.guard.recovered(&err)
			return boom("bug in a stream")
		}()
		if status.Code(err) != codes.Internal || strings.Count(f.logs.Take(), "bug in") != 1 {
			t.Errorf("a stream: got %v; want Internal, and one line in the log for all", err)
		}
	})
}

func TestACompressedCallIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, adminRules, nil)
		conn := dial(t, f.admin.Serve)
		packed := grpc.UseCompressor(gzip.Name) // registers gzip, as the exporter of traces does
		for name, call := range map[string]func() error{
			"ListRules": func() error {
				_, err := adminv1.NewAdminServiceClient(conn).ListRules(t.Context(), new(adminv1.ListRulesRequest), packed)
				return err
			},
			"reflection": func() error {
				stream, err := reflectiongrpc.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context(), packed)
				if err == nil {
					_ = stream.Send(new(reflectiongrpc.ServerReflectionRequest)) // EOF when the server has answered already
					_, err = stream.Recv()
				}
				return err
			},
		} {
			if err := call(); status.Code(err) != codes.Unimplemented || !strings.Contains(status.Convert(err).Message(), `grpc-encoding "gzip"`) {
				t.Errorf("%s with gzip: got %v; want UNIMPLEMENTED that names gzip", name, err)
			}
		}
	})
}

func TestReflectionDescribesTheAdminService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream, err := reflectiongrpc.NewServerReflectionClient(dial(t, start(t, adminRules, nil).admin.Serve)).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&reflectiongrpc.ServerReflectionRequest{
			MessageRequest: &reflectiongrpc.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "weir.admin.v1.AdminService"},
		}); err != nil {
			t.Fatal(err)
		}
		if got, err := stream.Recv(); err != nil || len(got.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("got %v, %v; want the file of the service", got, err)
		}
	})
}

func TestStatusIsTheStateOfTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			change func(*Options)
			want   string
		}{
			"a store in memory": {nil, `store { kind: "memory" keys: 2 places: 2 max_places: 1000000 }`},
			"a remote store that is away": {func(o *Options) {
				o.Ready = func() error { return errors.New("not yet") }
				o.Store = func() *adminv1.StoreStatus { return &adminv1.StoreStatus{Kind: "Redis", Reason: "gone", Without: 3} }
			}, `not_ready: "not yet" store { kind: "Redis" reason: "gone" without: 3 keys: 2 places: 2 max_places: 1000000 }`},
		} {
			f := start(t, adminRules, c.change)
			f.refuse("a mistake")
			f.ask(t, descriptor("shadow", "x"), descriptor("nothing", "x"))
			f.ask(t, hits(10, "nothing", "x"))
			got, err := f.service(t).Status(t.Context(), new(adminv1.StatusRequest))
			if err != nil {
				t.Fatal(err)
			}
			if l := got.GetRequests().GetLatency(); len(l.GetCounts()) != len(l.GetBounds())+1 || l.GetCounts()[len(l.GetBounds())] != 2 {
				t.Errorf("%s: got the times %v of two requests", name, l)
			}
			got.Requests.Latency = nil
			at := fmt.Sprintf("{ seconds: %d }", time.Now().Unix())
			is(t, got, new(adminv1.StatusResponse), c.want+` rules: 5 requests { passed: 1 denied: 1 } loads { hash: "`+f.limiter.Rules().Hash()+`"
				loads: 1 refusals: 1 zones: "`+zones.Version+`" errors: "a mistake" loaded_at `+at+` attempted_at `+at+` }`)
		}
	})
}
