package statistics

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/durations"
	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{"internal/durations", "internal/metrics", "internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store/memstore", "pkg/store", "internal/top"},
		Third: []string{
			"github.com/DataDog/datadog-go/v5/statsd", "github.com/cactus/go-statsd-client/v5/statsd", "github.com/prometheus/client_golang/prometheus",
		},
		Never: []string{"google.golang.org/grpc", "github.com/spf13/viper", "github.com/spf13/cobra"},
	})
}

// fixture is a limiter with rules, and a reader of its counts.
type fixture struct {
	*limiter.Limiter
	reader  *Reader
	spent   durations.Histogram
	refused uint64 // loads
	tb      testing.TB
}

func newFixture(tb testing.TB, rules string, o limiter.Options) *fixture {
	tb.Helper()
	s, err := memstore.New(memstore.Options{MaxKeys: 1000})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	o.NearLimit = 0.8
	f := &fixture{tb: tb}
	if f.Limiter, err = limiter.New(s, o); err != nil {
		tb.Fatal(err)
	}
	f.set(rules)
	loads := func() (succeeded, refused uint64) { return 1, f.refused }
	if f.reader, err = New(Options{Limiter: f.Limiter, Spent: f.spent.Snapshot, Loads: loads}); err != nil {
		tb.Fatal(err)
	}
	return f
}

// set puts documents in force, with `---` between them.
func (f *fixture) set(rules string) {
	f.tb.Helper()
	var sources []descriptors.Source
	for i, document := range strings.Split(rules, "\n---\n") {
		sources = append(sources, descriptors.Source{Name: fmt.Sprint(i), Data: []byte(document)})
	}
	loaded, _, err := descriptors.Load(sources, descriptors.Options{})
	if err != nil {
		f.tb.Fatal(err)
	}
	f.SetRules(loaded)
}

// ask sends one request of one descriptor, "key=value,key=value", with so many hits; below 0 is a
// refund.
func (f *fixture) ask(domain, descriptor string, hits int) {
	f.tb.Helper()
	r := &limiter.Request{Domain: domain}
	d := r.Add()
	for pair := range strings.SplitSeq(descriptor, ",") {
		name, value, _ := strings.Cut(pair, "=")
		d.Entries = append(d.Entries, descriptors.Entry{Key: name, Value: value})
	}
	d.Hits, d.Probe = uint64(max(hits, -hits)), hits == 0
	d.Refund = hits < 0
	if err := f.Check(f.tb.Context(), r, new(limiter.Verdict)); err != nil {
		f.tb.Fatal(err)
	}
}

// text returns the counters that are not 0, without the part before the domain.
func (f *fixture) text() map[string]uint64 {
	all := make(map[string]uint64)
	for name, value := range f.reader.counters() {
		if short, ok := strings.CutPrefix(name, "ratelimit.service.rate_limit."); ok && value > 0 {
			all[short] = value
		}
	}
	return all
}

const hour = "rate_limit: {unit: hour, requests_per_unit: 10}"

// The rows are those of envoyproxy/ratelimit's table of what is counted when; a request of several
// hits that is over limit counts whole.
func TestHitsAreCountedAsTheOriginalCountsThem(t *testing.T) {
	tests := map[string]struct {
		rule string
		hits []int
		want map[string]uint64
	}{
		"within":                         {hour, []int{1, 2}, map[string]uint64{"total_hits": 3, "within_limit": 3}},
		"near":                           {hour, []int{9}, map[string]uint64{"total_hits": 9, "within_limit": 9, "near_limit": 1}},
		"all near":                       {hour, []int{8, 2}, map[string]uint64{"total_hits": 10, "within_limit": 10, "near_limit": 2}},
		"over":                           {hour, []int{10, 3}, map[string]uint64{"total_hits": 13, "within_limit": 10, "near_limit": 2, "over_limit": 3}},
		"over in part":                   {hour, []int{7, 5}, map[string]uint64{"total_hits": 12, "within_limit": 7, "over_limit": 5}},
		"a probe":                        {hour, []int{0}, nil},
		"a refund":                       {hour, []int{3, -2}, map[string]uint64{"total_hits": 3, "within_limit": 3, "total_negative_hits": 2}},
		"over in shadow mode":            {"shadow_mode: true, " + hour, []int{10, 3}, map[string]uint64{"total_hits": 13, "within_limit": 10, "near_limit": 2, "over_limit": 3, "shadow_mode": 3}},
		"a limit of 0":                   {"rate_limit: {unit: hour, requests_per_unit: 0}", []int{1}, map[string]uint64{"total_hits": 1, "over_limit": 1}},
		"unlimited, which is not told":   {"rate_limit: {unlimited: true}", []int{5}, nil},
		"without a limit, nor this":      {"detailed_metric: true", []int{5}, nil},
		"a token bucket, near its burst": {"rate_limit: {unit: hour, requests_per_unit: 1, burst: 10, algorithm: token_bucket}", []int{9}, map[string]uint64{"total_hits": 9, "within_limit": 9, "near_limit": 1}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, "domain: d\ndescriptors:\n- {key: k, "+test.rule+"}\n", limiter.Options{})
				for _, hits := range test.hits {
					f.ask("d", "k=v", hits)
				}
				want := make(map[string]uint64)
				for name, n := range test.want {
					want["d.k."+name] = n
				}
				if test.rule == "detailed_metric: true" {
					want = map[string]uint64{}
				}
				if diff := cmp.Diff(want, f.text()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestRulesAreNamedAsTheOriginalNamesThem(t *testing.T) {
	tests := map[string]struct{ rules, descriptor, want string }{
		"a key alone":                {"[{key: k, " + hour + "}]", "k=v", "k"},
		"a value":                    {"[{key: k, value: v, " + hour + "}]", "k=v", "k_v"},
		"a wildcard":                 {"[{key: k, value: 'v*', " + hour + "}]", "k=v1", "k_v*"},
		"two levels":                 {"[{key: k, descriptors: [{key: l, value: w, " + hour + "}]}]", "k=v,l=w", "k.l_w"},
		"value_to_metric":            {"[{key: k, value_to_metric: true, descriptors: [{key: l, " + hour + "}]}]", "k=v,l=w", "k_v.l"},
		"detailed_metric":            {"[{key: k, descriptors: [{key: l, detailed_metric: true, " + hour + "}]}]", "k=v,l=w", "k_v.l_w"},
		"share_threshold":            {"[{key: k, value: 'v*', share_threshold: true, detailed_metric: true, " + hour + "}]", "k=v1", "k_v*"},
		"a colon and a bar":          {"[{key: k, value: 'a:b|c', " + hour + "}]", "k=a:b|c", "k_a_b_c"},
		"an IPv4 address":            {"[{key: masked_remote_address, value: 10.0.0.1/8, " + hour + "}]", "masked_remote_address=10.0.0.1/8", "masked_remote_address_10_0_0_1/8"},
		"an IPv6 address":            {"[{key: k, detailed_metric: true, " + hour + "}]", "k=2001:db8::1", "k_2001_db8__1"},
		"one of another key":         {"[{key: client_ip, value: 10.0.0.1, " + hour + "}]", "client_ip=10.0.0.1", "client_ip_10_0_0_1"},
		"a mask that does not match": {"[{key: 'invert:192.0.2.0/24', " + hour + "}]", "invert:192.0.2.0/24=v", "invert_192_0_2_0/24"},
		"no address":                 {"[{key: k, value: v1.2.3, " + hour + "}]", "k=v1.2.3", "k_v1.2.3"},
		"five numbers":               {"[{key: k, value: 1.2.3.4.5, " + hour + "}]", "k=1.2.3.4.5", "k_1_2_3_4.5"},
		"long numbers":               {"[{key: k, value: 1234.2.3.4567, " + hour + "}]", "k=1234.2.3.4567", "k_1234_2_3_4567"},
		"an end of a line":           {"[{key: k, detailed_metric: true, " + hour + "}]", "k=a\nb:1|c", "k_a_b_1_c"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "domain: d\ndescriptors: "+test.rules+"\n", limiter.Options{})
			f.ask("d", test.descriptor, 1)
			want := map[string]uint64{"d." + test.want + ".total_hits": 1, "d." + test.want + ".within_limit": 1}
			if diff := cmp.Diff(want, f.text()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatRequestsHoldDoesNotMakeSeries(t *testing.T) {
	f := newFixture(t, "domain: d\ndescriptors:\n- {key: k, detailed_metric: true, "+hour+"}\n", limiter.Options{DetailedValues: 10})
	for i := range 1000 {
		f.ask("d", fmt.Sprintf("k=%d", i), 1)
		f.ask(fmt.Sprintf("d%d", i), "k=v", 1)
	}
	rules, _ := f.reader.rules()
	if len(rules) != 11 {
		t.Errorf("%d keys are told, want 10 values and the others", len(rules))
	}
	if got := f.reader.totals().notFound; got != 1000 {
		t.Errorf("%d descriptors of unknown domains, want 1000", got)
	}
}

func TestTheTextHasEveryCounterOnALine(t *testing.T) {
	f := newFixture(t, "domain: d\ndescriptors:\n- {key: k, "+hour+"}\n", limiter.Options{})
	f.ask("d", "k=v", 2)
	var b strings.Builder
	if err := f.reader.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), "ratelimit.service.rate_limit.d.k.total_hits: 2\n") || strings.Count(b.String(), "\n") != 14 {
		t.Errorf("the text is\n%s", b.String())
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no limiter is accepted")
	}
}
