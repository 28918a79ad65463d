package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// page returns the code and the text of one of the sidecar's pages.
func (s *sidecar) page(t *testing.T, path string) (int, string) {
	t.Helper()
	return fetch(t, "http://"+s.HTTP+path)
}

// messages returns the messages of log lines.
func messages(lines []string) []string {
	var all []string
	for _, line := range lines {
		all = append(all, parts.ParseLog(line).Message)
	}
	return all
}

func TestWithoutRedisASidecarServesAtOnceSaysSoOnceAndSwitchesWhenRedisAppears(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	r.Kill() // and its port is free
	f := startFleet(t, urlOf(r.Address()))
	traffic := f.begin(t)
	// Each has half of the limit.
	if got := f.admitted(t, 2*few, "window", "alone"); got != few {
		t.Errorf("without Redis %d requests passed at two sidecars, want %d", got, few)
	}
	f.awaitState(t, "open")
	traffic.awaitMore(t, 50)
	marks := make([]int, len(f.sidecars))
	for i, s := range f.sidecars {
		if code, text := s.page(t, "/readyz"); code != http.StatusOK {
			t.Errorf("/readyz: got %d %q, want 200", code, text)
		}
		if lines, assumed := aboutOutage(s.told(0)); len(lines) != 1 || assumed != 1 {
			t.Errorf("lines of sidecar %d that say that Redis is away: got %d, and %d about the size of the fleet; want one of each:\n%s",
				i, len(lines), assumed, strings.Join(s.told(0), "\n"))
		}
		marks[i] = s.Mark()
	}

	if err := r.Restart(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	f.awaitQuiet(t)
	for i, s := range f.sidecars {
		// A busy machine may answer too late now and then, with lines that say so.
		if lines := s.told(marks[i]); !slices.Contains(messages(lines), "store is back, its counts rule again") {
			t.Errorf("lines of sidecar %d that say that Redis is there: got\n%s", i, strings.Join(lines, "\n"))
		}
	}
	f.left(t, 0, "window", "alone") // Redis has learned of the hits
	f.holds(t)
	f.finish(t)
}

func TestARedisThatRefusesIsNamedOnceAndServedWithout(t *testing.T) {
	t.Parallel()
	certificates, err := parts.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	others, err := parts.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	plain := startRedis(t, parts.RedisOptions{Password: "right", Users: []string{"reader on >right ~weir:* +@read +@connection +info"}})
	secure := startRedis(t, parts.RedisOptions{TLS: certificates})
	for _, test := range []struct {
		name, url string
		args      []string
		want      string // in the error that is logged
	}{
		{"no password", urlOf(plain.Address()), nil, "NOAUTH"},
		{"wrong password", urlOf(":31415926@" + plain.Address()), nil, "WRONGPASS"},
		{"a user that may only read", urlOf("reader:right@" + plain.Address()), nil, "NOPERM"},
		{"TLS where there is none", "rediss://:right@" + plain.Address(), nil, "TLS with " + plain.Address()},
		{"another authority", "rediss://" + secure.Address(), []string{"--redis-tls-ca=" + others.CA}, "certificate"},
		{"no certificate", "rediss://" + secure.Address(), []string{"--redis-tls-ca=" + certificates.CA}, secure.Address()},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fleet{}
			s := f.start(t, fleetRules, test.url, test.args...)
			if got := f.admitted(t, 2*few, "window", "alone"); got != few {
				t.Errorf("%d requests passed, want %d", got, few)
			}
			f.awaitState(t, "open")
			var warnings []string
			parts.Eventually(t, func() string { // once an attempt to connect has ended
				warnings, _ = aboutOutage(slices.DeleteFunc(s.told(0), func(line string) bool { return parts.ParseLog(line).Level == "INFO" }))
				if len(warnings) == 0 {
					return "no warning yet"
				}
				return ""
			})
			if len(warnings) != 1 || !strings.Contains(warnings[0], test.want) {
				t.Errorf("warnings about Redis: got\n%s\nwant one with %q", strings.Join(warnings, "\n"), test.want)
			}
			if strings.Contains(strings.Join(s.Lines(), "\n"), "31415926") {
				t.Errorf("the log shows the password")
			}
			f.end(t)
		})
	}
}

// aboutOutage returns the lines about an outage, and the number of lines about the assumed size of
// the fleet.
func aboutOutage(lines []string) (outage []string, assumed int) {
	outage = slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return strings.HasPrefix(parts.ParseLog(line).Message, "redis does not answer at the start")
	})
	return outage, len(lines) - len(outage)
}
