package statistics

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/durations"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// reporter returns a reporter to a daemon.
func reporter(t *testing.T, f *fixture, o ReporterOptions) *Reporter {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p, err := f.reader.NewReporter(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const one = "domain: d\ndescriptors:\n- {key: k, value: v, rate_limit: {unit: year, requests_per_unit: 10}}\n"

func TestStatsDGetsTheNewCounts(t *testing.T) {
	for _, tcp := range []bool{true, false} {
		t.Run(fmt.Sprintf("tcp=%t", tcp), func(t *testing.T) {
			d := listen(t, tcp, "127.0.0.1:0")
			f := newFixture(t, one, limiter.Options{})
			p := reporter(t, f, ReporterOptions{Address: d.address, TCP: tcp, Tags: map[string]string{"zone": "a.b:c", "app": "rl"}})
			f.ask("d", "k=v", 9)
			f.spent.Observe(10 * time.Microsecond)
			p.report(t.Context())
			const tags = ".__app=rl.__zone=a_b_c"
			want := []string{
				"ratelimit.service.config_load_success" + tags + ":1|c",
				"ratelimit.service.rate_limit.d.k_v.near_limit" + tags + ":1|c",
				"ratelimit.service.rate_limit.d.k_v.total_hits" + tags + ":9|c",
				"ratelimit.service.rate_limit.d.k_v.within_limit" + tags + ":9|c",
				"ratelimit_server.ShouldRateLimit.response_time" + tags + ":0.01|ms",
				"ratelimit_server.ShouldRateLimit.total_requests" + tags + ":1|c",
			}
			if diff := cmp.Diff(want, d.take(t, len(want))); diff != "" {
				t.Errorf("first report (-want +got):\n%s", diff)
			}
			f.ask("d", "k=v", 2)
			p.report(t.Context())
			want = []string{
				"ratelimit.service.rate_limit.d.k_v.over_limit" + tags + ":2|c",
				"ratelimit.service.rate_limit.d.k_v.total_hits" + tags + ":2|c",
				"ratelimit_server.ShouldRateLimit.total_requests" + tags + ":1|c",
			}
			if diff := cmp.Diff(want, d.take(t, len(want))); diff != "" {
				t.Errorf("second report (-want +got):\n%s", diff)
			}
			p.report(t.Context())
			d.close()
			d.wantNothing(t)
		})
	}
}

func TestDogStatsDGetsNamesAndTags(t *testing.T) {
	d := listen(t, false, "127.0.0.1:0")
	f := newFixture(t, one, limiter.Options{})
	mogrify, err := NewMogrifier(`^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$`, "ratelimit.$3", map[string]string{"domain": "$1", "rule": "$2"})
	if err != nil {
		t.Fatal(err)
	}
	never, err := NewMogrifier(`.*total_hits$`, "never", nil)
	if err != nil {
		t.Fatal(err)
	}
	p := reporter(t, f, ReporterOptions{Address: d.address, Dog: true, Mogrifiers: []Mogrifier{mogrify, never}, Tags: map[string]string{"app": "r:l"}})
	f.ask("d", "k=v", 3)
	f.spent.Observe(2 * time.Millisecond)
	p.report(t.Context())
	want := []string{
		"ratelimit.service.config_load_success:1|c|#app:r:l",
		"ratelimit.total_hits:3|c|#app:r:l,domain:d,rule:k_v",
		"ratelimit.within_limit:3|c|#app:r:l,domain:d,rule:k_v",
		"ratelimit_server.ShouldRateLimit.response_time:2.000000|ms|#app:r:l",
		"ratelimit_server.ShouldRateLimit.total_requests:1|c|#app:r:l",
	}
	if diff := cmp.Diff(want, d.take(t, len(want))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDogStatsDHasTheTagsOfTheEnvironment(t *testing.T) {
	t.Setenv("DD_ENV", "prod|x")
	t.Setenv("DD_SERVICE", "")
	t.Setenv("DD_VERSION", "1,2")
	d := listen(t, false, "127.0.0.1:0")
	reporter(t, newFixture(t, one, limiter.Options{}), ReporterOptions{Address: d.address, Dog: true}).report(t.Context())
	if diff := cmp.Diff([]string{"ratelimit.service.config_load_success:1|c|#env:prod_x,version:1_2"}, d.take(t, 1)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDogStatsDGetsManyTimesInFewLines(t *testing.T) {
	d := listen(t, false, "127.0.0.1:0")
	f := newFixture(t, one, limiter.Options{})
	for range 1_234_567 {
		f.spent.Observe(300 * time.Microsecond)
	}
	reporter(t, f, ReporterOptions{Address: d.address, Dog: true}).report(t.Context())
	requests := 0.0
	for _, line := range d.take(t, 1+1+2+3+4+5+6+7)[1:] {
		rest, found := strings.CutPrefix(line, responseTime+":0.300000|ms")
		weight := 1.0
		if rate, sampled := strings.CutPrefix(rest, "|@"); sampled {
			n, err := strconv.ParseFloat(rate, 64)
			if err != nil {
				t.Fatal(err)
			}
			weight = 1 / n
		}
		if !found {
			t.Errorf("got %q", line)
		}
		requests += weight
	}
	if math.Abs(requests-1_234_567) > 0.5 {
		t.Errorf("the lines stand for %v requests; want 1234567", requests)
	}
}

func TestNothingIsLostWhileNobodyListens(t *testing.T) {
	d := listen(t, true, "127.0.0.1:0")
	d.close()
	var log strings.Builder
	f := newFixture(t, one, limiter.Options{})
	p := reporter(t, f, ReporterOptions{Address: d.address, TCP: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	f.ask("d", "k=v", 1)
	p.report(t.Context())
	f.ask("d", "k=v", 2)
	p.report(t.Context())
	d = listen(t, true, d.address)
	p.report(t.Context())
	got := d.take(t, 4)
	if want := "ratelimit.service.rate_limit.d.k_v.total_hits:3|c"; !slices.Contains(got, want) {
		t.Errorf("got %q, want also %q", got, want)
	}
	if s := log.String(); strings.Count(s, "metrics are not sent") != 1 || strings.Count(s, "metrics are sent again") != 1 || strings.Count(s, "\n") != 2 {
		t.Errorf("the log says\n%s", s)
	}
}

func TestARunReportsEveryIntervalAndOnceMoreAtItsEnd(t *testing.T) {
	d := listen(t, true, "127.0.0.1:0")
	f := newFixture(t, one, limiter.Options{})
	p := reporter(t, f, ReporterOptions{Address: d.address, TCP: true, Interval: time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	d.take(t, 1) // config_load_success
	cancel()
	<-done

	p = reporter(t, f, ReporterOptions{Address: d.address, TCP: true})
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	p.Run(ctx)
	d.take(t, 1)
}

func TestManyMetricsGoInPacketsThatFit(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	for i := range 200 {
		fmt.Fprintf(&rules, "- {key: k%d, rate_limit: {unit: year, requests_per_unit: 10}}\n", i)
	}
	for _, dog := range []bool{false, true} {
		t.Run(fmt.Sprintf("dog=%t", dog), func(t *testing.T) {
			d := listen(t, false, "127.0.0.1:0")
			f := newFixture(t, rules.String(), limiter.Options{})
			for i := range 200 {
				f.ask("d", fmt.Sprintf("k%d=v", i), 1)
			}
			reporter(t, f, ReporterOptions{Address: d.address, Dog: dog}).report(t.Context())
			d.take(t, 402)
			d.close()
			for len(d.packets) > 0 {
				if n := <-d.packets; n > 1432 {
					t.Errorf("a packet has %d bytes", n)
				}
			}
		})
	}
}

// The lines stand for the number of requests and for the sum of the times.
func TestTimesStandForAllRequests(t *testing.T) {
	tests := map[string][]time.Duration{
		"one":         {7 * time.Microsecond},
		"many alike":  slices.Repeat([]time.Duration{300 * time.Microsecond}, 12_345),
		"mixed":       append(slices.Repeat([]time.Duration{80 * time.Microsecond}, 99), 30*time.Millisecond),
		"beyond":      {time.Second, 3 * time.Second},
		"also beyond": {50 * time.Microsecond, 2 * time.Second},
	}
	for name, all := range tests {
		t.Run(name, func(t *testing.T) {
			d := listen(t, true, "127.0.0.1:0")
			f := newFixture(t, one, limiter.Options{})
			p := reporter(t, f, ReporterOptions{Address: d.address, TCP: true})
			var sum time.Duration
			for _, took := range all {
				f.spent.Observe(took)
				sum += took
			}
			p.report(t.Context())
			select {
			case <-d.read: // a closed listener drops connections before Accept
			case <-time.After(time.Minute):
				t.Fatal("no flush")
			}
			d.close()
			close(d.lines)
			var times, spent float64
			for line := range d.lines {
				rest, ok := strings.CutPrefix(line, responseTime+":")
				if !ok {
					continue
				}
				value, rate, sampled := strings.Cut(rest, "|ms")
				ms, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatal(err)
				}
				weight := 1.0
				if rate = strings.TrimPrefix(rate, "|@"); sampled && rate != "" {
					r, err := strconv.ParseFloat(rate, 64)
					if err != nil {
						t.Fatal(err)
					}
					weight = 1 / r
				}
				times += weight
				spent += weight * ms
			}
			if math.Abs(times-float64(len(all))) > 1e-6*float64(len(all)) {
				t.Errorf("the lines stand for %v requests, want %d", times, len(all))
			}
			if want := float64(sum) / float64(time.Millisecond); math.Abs(spent-want) > 0.01*want {
				t.Errorf("the lines stand for %v ms, want %v", spent, want)
			}
		})
	}
}

func TestSamplesOfNothingAreNone(t *testing.T) {
	var h durations.Histogram
	h.Observe(time.Millisecond)
	s := h.Snapshot()
	if got := samples(s, s); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	if got := samples(store.Durations{}, store.Durations{}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestAReporterMustHaveItsOptions(t *testing.T) {
	f := newFixture(t, one, limiter.Options{})
	_, err := f.reader.NewReporter(ReporterOptions{Address: "nowhere", TCP: true, Dog: true, Interval: -1})
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("error %v, want 4 reasons", err)
	}
}

func TestAMogrifierMustMeanSomething(t *testing.T) {
	for name, test := range map[string]struct {
		pattern, name string
		tags          map[string]string
		mistakes      int
	}{
		"nothing":           {"", "", nil, 2},
		"a bad pattern":     {"(", "x", nil, 1},
		"a group too many":  {"(a)", "$2", map[string]string{"t": "$9999999999999999999999"}, 2},
		"a tag of no name":  {"a", "x", map[string]string{"": "t"}, 1},
		"a tag of no text":  {"a", "x", map[string]string{"t": ""}, 1},
		"all is well":       {"(a)", "$1$0", map[string]string{"t": "$1"}, 0},
		"a dollar on a sum": {"a", "$ 5", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewMogrifier(test.pattern, test.name, test.tags)
			got := 0
			if err != nil {
				got = strings.Count(err.Error(), "\n") + 1
			}
			if got != test.mistakes {
				t.Errorf("%d mistakes, want %d: %v", got, test.mistakes, err)
			}
		})
	}
}
