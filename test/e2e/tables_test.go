package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/test/parts"
)

// tabled is two sidecars that share a Redis, a rule file and the table of the rule.
type tabled struct {
	dir      string
	sidecars []*sidecar
	clients  []client
}

const tableRules = `
domain: e2e
descriptors:
  - {key: tenant, rate_limit: {table: tenants.csv, unit: year, requests_per_unit: 20, count_rejected: false}}
`

func startTabled(t *testing.T, table string) *tabled {
	t.Helper()
	r := startRedis(t, parts.RedisOptions{})
	f := &tabled{dir: t.TempDir()}
	writeFile(t, filepath.Join(f.dir, "rules.yaml"), tableRules)
	writeFile(t, filepath.Join(f.dir, "tenants.csv"), table)
	for range 2 {
		s := startSidecarOn(t, filepath.Join(f.dir, "rules.yaml"), "--store=redis", "--redis-url="+urlOf(r.Address()), patientFleet)
		f.sidecars = append(f.sidecars, s)
		f.clients = append(f.clients, dial(t, s.GRPC))
	}
	return f
}

// replace puts another table in place, and waits until each sidecar has the message in its log. The
// result is the lines.
func (f *tabled) replace(t *testing.T, table, message string) (lines []string) {
	t.Helper()
	var marks []int
	for _, s := range f.sidecars {
		marks = append(marks, s.Mark())
	}
	next := filepath.Join(f.dir, "next")
	writeFile(t, next, table)
	if err := os.Rename(next, filepath.Join(f.dir, "tenants.csv")); err != nil {
		t.Fatal(err)
	}
	for i, s := range f.sidecars {
		line, err := s.AwaitMessage(deadline(t), marks[i], message)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

// wantAdmitted sends hits to the sidecars in turns, and wants some of them to pass.
func (f *tabled) wantAdmitted(t *testing.T, value string, hits, want int) {
	t.Helper()
	got := 0
	for i := range hits {
		if f.clients[i%len(f.clients)].ask(t, 1, "tenant", value).GetCode() == ratelimitv3.RateLimitResponse_OK {
			got++
		}
	}
	if got != want {
		t.Errorf("tenant %q: %d of %d requests passed, want %d", value, got, hits, want)
	}
}

func TestATableGivesEachCustomerItsNumberOverRedis(t *testing.T) {
	t.Parallel()
	f := startTabled(t, "value,requests_per_unit,unit\nacme,5\n\"Smith, Jones & Co\",7\nblocked,0\ndaily,3,day\n")
	f.wantAdmitted(t, "acme", 12, 5)
	f.wantAdmitted(t, "Smith, Jones & Co", 12, 7)
	f.wantAdmitted(t, "blocked", 4, 0)
	f.wantAdmitted(t, "unlisted", 30, 20)
	f.wantAdmitted(t, "later", 30, 20)
	for i, c := range f.clients {
		if got := c.ask(t, 0, "tenant", "daily").GetCurrentLimit(); got.GetRequestsPerUnit() != 3 || got.GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_DAY {
			t.Errorf("sidecar %d: the limit of a line with a unit: got %v, want 3 per day", i, got)
		}
	}

	// The counts go on under the numbers of another table.
	f.replace(t, "acme,8\nlater,25\n", "rules loaded")
	f.wantAdmitted(t, "acme", 12, 3)
	f.wantAdmitted(t, "later", 12, 5)
	f.wantAdmitted(t, "Smith, Jones & Co", 30, 13) // 20, as without a line
	f.wantAdmitted(t, "blocked", 30, 20)
	f.wantAdmitted(t, "unlisted", 4, 0)

	for i, line := range f.replace(t, "acme,many\nlater,1\nlater,2\n", "rules refused") {
		for _, text := range []string{`tenants.csv:1: requests_per_unit: is \"many\"`, `tenants.csv:3: value: \"later\" is given twice`} {
			if !strings.Contains(line, text) {
				t.Errorf("sidecar %d: the log of a table with mistakes has no %s:\n%s", i, text, line)
			}
		}
	}
	for i, c := range f.clients {
		if got := c.limitOf(t, "acme"); got != 8 {
			t.Errorf("sidecar %d with a refused table: got the limit %d, want 8", i, got)
		}
	}

	f.sidecars[0].grant(t, "acme", "--factor=2", "--for=1h")
	f.clients[1].awaitLimit(t, "acme", 16)
	f.wantAdmitted(t, "acme", 12, 8)
}
