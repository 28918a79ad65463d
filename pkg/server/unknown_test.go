package server

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const watchedRules = "domain: edge\ndescriptors: [{key: path, value: /cart, rate_limit: {unit: day, requests_per_unit: 2}}]\n"

// warnings returns the log lines about domains without rules since the last call, without their
// times.
func (f *fixture) warnings() []string {
	var all []string
	for line := range strings.Lines(f.logs.Take()) {
		if strings.Contains(line, "domain without rules") {
			all = append(all, regexp.MustCompile(`^time=\S+ |\n$`).ReplaceAllString(line, ""))
		}
	}
	return all
}

func (f *fixture) askIn(tb testing.TB, domain, key, value string) {
	tb.Helper()
	if _, err := f.client.ShouldRateLimit(tb.Context(), &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: []*commonv3.RateLimitDescriptor{descriptor(key, value)}}); err != nil {
		tb.Fatal(err)
	}
}

func TestARequestWithAnUnknownDomainIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, nil)
		f.askIn(t, "edge", "path", "/cart")
		for range 3 {
			f.askIn(t, "egde", "path", "\x1b[2J")
		}
		f.askIn(t, "other", "path", "/cart")
		line := func(domain, entry string, missed int) string {
			return `level=WARN msg="a request names a domain without rules, and is not limited" domain=` + domain + ` descriptor="path=` + entry +
				fmt.Sprintf(`" client=bufconn domains_with_rules=edge not_logged=%d`, missed)
		}
		check := func(want ...string) {
			t.Helper()
			if got := f.warnings(); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		check(line("egde", `\"\\x1b[2J\"`, 0), line("other", "/cart", 0))
		time.Sleep(59 * time.Second)
		f.askIn(t, "egde", "path", "/cart")
		check()
		time.Sleep(time.Second)
		f.askIn(t, "egde", "path", "/cart")
		check(line("egde", "/cart", 3))
	})
}

func TestUnknownDomainsAreBounded(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, nil)
		f.askIn(t, strings.Repeat("x", 10_000), "path", "/cart")
		if got := f.warnings(); len(got) != 1 || len(got[0]) > 1000 {
			t.Errorf("a long name: got %q", got)
		}
		for i := range 1000 {
			f.askIn(t, fmt.Sprint("d", i), "path", "/cart")
		}
		if got := len(f.warnings()); got != unknownMost {
			t.Errorf("1000 domains: got %d lines; want %d", got, unknownMost)
		}
		if n := len(*f.server.service.unknown.known.Load()); n != unknownMost {
			t.Errorf("1000 domains: %d are kept; want %d", n, unknownMost)
		}
		time.Sleep(unknownForget) // an honest mistake is logged although there was such a flood
		f.askIn(t, "egde", "path", "/cart")
		if got := f.warnings(); len(got) != 1 || !strings.Contains(got[0], "domain=egde") {
			t.Errorf("later: got %q", got)
		}
	})
}

func TestTheLogNamesTheClientOfAnUnknownDomain(t *testing.T) {
	for _, library := range []bool{false, true} {
		f := start(t, watchedRules, func(o *Options) { o.GRPCGo = library })
		f.askIn(t, "egde", "path", "/cart")
		f.fetch(t, "POST", "/json", `{"domain":"egdee","descriptors":[{"entries":[{"key":"path","value":"/cart"}]}]}`)
		got := f.warnings()
		if len(got) != 2 || !strings.Contains(got[0], "client=bufconn ") || !regexp.MustCompile(`client=\S+:\d+ `).MatchString(got[1]) {
			t.Errorf("gRPC's library %t: got %q", library, got)
		}
	}
}
