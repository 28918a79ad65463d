package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/test/parts"
)

// grantRules give each tenant few requests.
const grantRules = `
domain: e2e
descriptors:
  - {key: tenant, rate_limit: {requests_per_unit: 20, unit: year, count_rejected: false}}
`

// command runs a command of the sidecar's binary, and returns the output and the exit code.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(parts.Soon(t), os.Getenv(sidecarVariable), args...)
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errors.String(), cmd.ProcessState.ExitCode()
}

// must runs a command that asks a sidecar, and returns the output. The command must end with exit
// code 0.
func (s *sidecar) must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, stderr, code := command(t, append([]string{name, "--server=" + s.Admin}, args...)...)
	if code != 0 {
		t.Fatalf("%s %q: exit code %d, %s", name, args, code, stderr)
	}
	return out
}

// grant gives a grant for tenant=VALUE, and returns the ID.
func (s *sidecar) grant(t *testing.T, value string, args ...string) string {
	t.Helper()
	out := s.must(t, "grant", append([]string{"e2e", "tenant=" + value, "--reason=ticket 4711", "--by=ann", "--output=json"}, args...)...)
	var answer struct{ Grant struct{ ID string } }
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Grant.ID == "" {
		t.Fatalf("grant: got %s, %v", out, err)
	}
	return answer.Grant.ID
}

// limitOf asks for no hits of a tenant, and returns the limit that the sidecar applies.
func (c client) limitOf(t *testing.T, value string) int {
	t.Helper()
	return int(c.ask(t, 0, "tenant", value).GetCurrentLimit().GetRequestsPerUnit())
}

// awaitLimit asks until a sidecar applies a limit to a tenant.
func (c client) awaitLimit(t *testing.T, value string, want int) {
	t.Helper()
	parts.Eventually(t, func() string {
		if got := c.limitOf(t, value); got != want {
			return fmt.Sprintf("the limit of %s: got %d, want %d", value, got, want)
		}
		return ""
	})
}

// obeyed sends requests one after the other until one has the code, and returns the time from an
// instant to that answer.
func (c client) obeyed(t *testing.T, value string, want ratelimitv3.RateLimitResponse_Code, since time.Time) time.Duration {
	t.Helper()
	for ctx := parts.Soon(t); ctx.Err() == nil; {
		if c.ask(t, 1, "tenant", value).GetCode() == want {
			return time.Since(since)
		}
	}
	t.Fatalf("tenant %s is not %v after %v", value, want, parts.Within)
	return 0
}

// naming returns the lines of the log with a message about the grant with an ID, as objects.
func (s *sidecar) naming(t *testing.T, id string) (lines []map[string]any) {
	t.Helper()
	for _, line := range s.Lines() {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("the log has %q: %v", line, err)
		} else if entry["grant"] == id {
			lines = append(lines, entry)
		}
	}
	return lines
}

// wantAudit wants one line of the log about a grant, with some attributes.
func (s *sidecar) wantAudit(t *testing.T, id string, want map[string]any) {
	t.Helper()
	var operator []map[string]any
	for _, line := range s.naming(t, id) {
		if message, _ := line["msg"].(string); strings.HasPrefix(message, "an operator ") {
			operator = append(operator, line)
		}
	}
	if len(operator) != 1 {
		t.Errorf("lines in the log about what an operator did with grant %s: got %v, want 1", id, operator)
		return
	}
	for name, value := range want {
		if got := operator[0][name]; fmt.Sprint(got) != fmt.Sprint(value) {
			t.Errorf("audit: %s: got %v, want %v", name, got, value)
		}
	}
}

func TestAGrantOnOneSidecarIsObeyedOnAnotherWithinASecond(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	f := &fleet{}
	for range 2 {
		f.start(t, grantRules, urlOf(r.Address()), patientFleet)
	}
	a, b := f.sidecars[0], f.sidecars[1]
	const rounds = 5 // a busy machine may delay some
	var given, revoked []time.Duration
	for round := range rounds {
		value := fmt.Sprintf("round-%d", round)
		for range 20 {
			f.clients[1].ask(t, 1, "tenant", value)
		}
		if code := f.clients[1].ask(t, 1, "tenant", value).GetCode(); code != ratelimitv3.RateLimitResponse_OVER_LIMIT {
			t.Fatalf("a spent limit: got %v", code)
		}
		until := time.Now().Add(2 * time.Hour).Truncate(time.Second).UTC().Format(time.RFC3339)
		id := a.grant(t, value, "--requests=1000000000", "--until="+until)
		given = append(given, f.clients[1].obeyed(t, value, ratelimitv3.RateLimitResponse_OK, time.Now()))
		a.wantAudit(t, id, map[string]any{
			"level": "WARN", "msg": "an operator gave a grant", "descriptor": "tenant=" + value, "requests": 1e9, "until": until,
			"reason": "ticket 4711", "by": "ann",
		})
		for _, line := range b.naming(t, id) {
			if line["msg"] != "a grant is in force here" {
				t.Errorf("the log of the other sidecar has %v", line)
			}
		}
		for _, text := range []string{"1000000000 per 365d", "by grant " + id + " until " + until + ": ticket 4711"} {
			if out := b.must(t, "match", "e2e", "tenant="+value); !strings.Contains(out, text) {
				t.Errorf("match on the other sidecar has no %q:\n%s", text, out)
			}
		}

		if out := b.must(t, "revoke", "--by=bob", id); !strings.HasPrefix(out, "revoked\ngrant   "+id+"\n") {
			t.Errorf("revoke: got %q", out)
		}
		revoked = append(revoked, f.clients[0].obeyed(t, value, ratelimitv3.RateLimitResponse_OVER_LIMIT, time.Now()))
		b.wantAudit(t, id, map[string]any{
			"level": "WARN", "msg": "an operator revoked a grant", "descriptor": "tenant=" + value, "requests": 1e9, "until": until,
			"reason": "ticket 4711", "by": "ann", "revoked_by": "bob",
		})
		parts.Eventually(t, func() string {
			if lines := a.naming(t, id); len(lines) != 2 {
				return fmt.Sprintf("lines about the grant in the log of the sidecar that gave it: got %v, want the grant and its end", lines)
			}
			return ""
		})
	}
	for what, took := range map[string][]time.Duration{"grant": given, "revoke": revoked} {
		slices.Sort(took)
		t.Logf("%s: obeyed on the other sidecar after %v", what, took)
		if median := took[rounds/2]; median > time.Second {
			t.Errorf("%s: obeyed on the other sidecar after %v, the middle one of %v; want at most 1 s", what, median, took)
		}
	}
}

func TestANewSidecarObeysGrantsInItsFirstAnswer(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	f := &fleet{}
	a := f.start(t, grantRules, urlOf(r.Address()), patientFleet)
	id := a.grant(t, "early", "--requests=7", "--for=2h")
	late := f.start(t, grantRules, urlOf(r.Address()), patientFleet)
	if got := f.clients[1].limitOf(t, "early"); got != 7 {
		t.Errorf("the limit in the first answer: got %d, want 7", got)
	}
	if out := late.must(t, "grants"); !strings.HasPrefix(out, "grant   "+id+"\n") || !strings.HasSuffix(out, "\n1 in all, kept in Redis, for all processes that share it\n") {
		t.Errorf("grants on the new sidecar: got\n%s", out)
	}
}

func TestWithoutRedisGrantsGoOnUntilTheirInstant(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	f := &fleet{}
	for range 2 {
		f.start(t, grantRules, urlOf(r.Address()))
	}
	a, b := f.sidecars[0], f.clients[1]
	until := time.Now().Add(10 * time.Second).Truncate(time.Second)
	a.grant(t, "short", "--block", "--until="+until.UTC().Format(time.RFC3339))
	long := a.grant(t, "long", "--requests=7", "--for=2h")
	b.awaitLimit(t, "long", 7)
	b.awaitLimit(t, "short", 0)
	r.Kill()
	if _, stderr, code := command(t, "grant", "--server="+a.Admin, "e2e", "tenant=new", "--block", "--for=1h", "--reason=x"); code != 1 || !strings.Contains(stderr, "redis has not confirmed the change") {
		t.Errorf("a grant without Redis: got exit code %d, %q", code, stderr)
	}
	if _, stderr, code := command(t, "revoke", "--server="+a.Admin, long); code != 1 || !strings.Contains(stderr, "redis has not confirmed the change") {
		t.Errorf("a revoke without Redis: got exit code %d, %q", code, stderr)
	}
	for denied := 0; ; {
		asked := time.Now()
		code := b.ask(t, 1, "tenant", "short").GetCode()
		answered := time.Now()
		switch {
		case answered.Before(until) && code != ratelimitv3.RateLimitResponse_OVER_LIMIT:
			t.Fatalf("%v before the end of the block: got %v", until.Sub(answered), code)
		case !asked.Before(until) && code != ratelimitv3.RateLimitResponse_OK:
			t.Fatalf("%v after the end of the block: got %v", asked.Sub(until), code)
		}
		if answered.Before(until) {
			denied++
		}
		if asked.After(until) {
			t.Logf("without Redis the block denied %d requests until its instant", denied)
			if denied == 0 {
				t.Error("no request was sent before the end of the block")
			}
			break
		}
	}
	for i, c := range f.clients {
		if got := c.limitOf(t, "long"); got != 7 {
			t.Errorf("sidecar %d without Redis: got the limit %d, want 7", i, got)
		}
	}
	if err := r.Restart(parts.Soon(t)); err != nil { // with nothing in it
		t.Fatal(err)
	}
	f.start(t, grantRules, urlOf(r.Address()))
	f.clients[2].awaitLimit(t, "long", 7) // from the sidecars that knew the grant
}
