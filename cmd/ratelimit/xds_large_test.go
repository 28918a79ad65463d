package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/test/parts"
)

// perHour is a resource with a limit per hour on the key k.
func perHour(domain string, requests uint32) *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: "of-" + domain, Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_HOUR, RequestsPerUnit: requests}},
	}}
}

// largeRules is the number of rules in a resource of 10 MiB, beside the rule of perHour. Each rule
// has 1 KiB: bytes cost little, and internal/rules/xds has the test with as many short rules as 10
// MiB can hold.
func largeRules() uint32 { return uint32(race.Scale(10_400)) }

// large is a resource of 10 MiB. The limit of value i is i+1 per hour.
func large(t *testing.T) *ratelimitv3.RateLimitConfig {
	t.Helper()
	c := perHour("large", 1)
	for i := range largeRules() {
		c.Descriptors = append(c.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Key: "k", Value: largeValue(i), RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_HOUR, RequestsPerUnit: i + 1},
		})
	}
	if n := proto.Size(c); n < race.Scale(10<<20) {
		t.Fatalf("the resource has %d bytes, want 10 MiB", n)
	}
	return c
}

// muchLater is how long a test waits for the loading of that, which takes seconds with the race
// detector on a busy machine.
const muchLater = 2 * within

func largeValue(i uint32) string { return fmt.Sprintf("%06d-%s", i, strings.Repeat("x", 1000)) }

// sets makes resources all that a control plane has for the node "default".
func sets(t *testing.T, p *parts.ControlPlane, version string, all ...*ratelimitv3.RateLimitConfig) {
	t.Helper()
	if err := p.Set("default", version, all...); err != nil {
		t.Fatal(err)
	}
}

// wantAnswer wants one field after the other of the answer to a request, which must be as show
// writes it.
func (r *running) wantAnswer(t *testing.T, request, want string) {
	t.Helper()
	answer, err := r.ask(t, parseRequest(t, request))
	if got := show(t, answer, err); got != want {
		t.Errorf("%s\n got %s\nwant %s", request, got, want)
	}
}

// awaitAnswer waits until the answer to a request, which must count nothing, is that.
func (r *running) awaitAnswer(t *testing.T, request, want string) {
	t.Helper()
	eventually(t, muchLater, func() string {
		answer, err := r.ask(t, parseRequest(t, request))
		if got := show(t, answer, err); got != want {
			return fmt.Sprintf("%s\n got %s\nwant %s", request, got, want)
		}
		return ""
	})
}

// awaitRefusal waits until a control plane has heard what is wrong with what it sent, and returns
// it.
func awaitRefusal(t *testing.T, p *parts.ControlPlane) parts.XDSRequest {
	t.Helper()
	var refusal parts.XDSRequest
	eventually(t, muchLater, func() string {
		for _, r := range p.Requests() {
			if r.Refused {
				refusal = r
				return ""
			}
		}
		return "the control plane heard of no mistake"
	})
	return refusal
}

func TestAConfigurationOfTenMiBComesByXDS(t *testing.T) {
	race.Without(t)
	p, big := controlPlane(t), large(t)
	r := start(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+p.Address)
	r.awaitPage(t, "http", "/healthcheck", http.StatusServiceUnavailable, "no configuration from xds server "+p.Address+" yet")
	sets(t, p, "1", big, perHour("small", 5))
	r.awaitAnswer(t, "small +1 | k=v +0", "OK | OK 5/3 left 5 reset")
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
	last := "large | k=" + largeValue(largeRules()-1)
	r.wantAnswer(t, last, fmt.Sprintf("OK | OK %d/3 left %d reset", largeRules(), largeRules()-1))
	r.wantAnswer(t, "small | k=v", "OK | OK 5/3 left 4 reset")

	// A small change beside it comes into force, and counts go on.
	sets(t, p, "2", big, perHour("small", 7))
	r.awaitAnswer(t, "small +1 | k=v +0", "OK | OK 7/3 left 6 reset")
	r.wantAnswer(t, last, fmt.Sprintf("OK | OK %d/3 left %d reset", largeRules(), largeRules()-2))

	// The last of its rules turns bad: all of it stays as it is, what is beside it changes, and the
	// control plane hears why.
	bad := proto.CloneOf(big)
	bad.Descriptors[0].RateLimit.RequestsPerUnit = 9
	bad.Descriptors[largeRules()].RateLimit.Unit = ratelimitv3.RateLimitUnit_UNKNOWN
	sets(t, p, "3", bad, perHour("small", 3))
	r.awaitAnswer(t, "small +1 | k=v +0", "OK | OK 3/3 left 2 reset")
	reason := fmt.Sprintf(`xds:of-large: descriptors[%d].rate_limit.unit: "UNKNOWN" is not a unit, must be second, minute, hour, day, week, month or year`, largeRules())
	if got := awaitRefusal(t, p); got.Refusal != reason || got.Version != "2" {
		t.Errorf("the control plane heard %q, version %q; want %q, 2", got.Refusal, got.Version, reason)
	}
	r.wantAnswer(t, last, fmt.Sprintf("OK | OK %d/3 left %d reset", largeRules(), largeRules()-3))
	r.wantAnswer(t, "large | k=v", "OK | OK 1/3 reset")
	var said struct {
		Errors  []string
		Older   []string `json:"older_in_force"`
		Without []string `json:"not_in_force"`
	}
	line, _ := r.log.Await(t, 0, logtest.Has(`"rules refused"`))
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	if len(said.Errors) != 1 || said.Errors[0] != reason || len(said.Older) != 1 || said.Older[0] != "xds:of-large" || len(said.Without) != 0 {
		t.Errorf("the log says %s", line)
	}

	sets(t, p, "4", perHour("small", 2))
	r.awaitAnswer(t, last, "OK | OK")
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
}

func TestAConfigurationThatIsTooLargeIsSaidToBeAndTheOldOneStays(t *testing.T) {
	p, big := controlPlane(t), large(t)
	r := start(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+p.Address, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=1000000",
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=10ms", "XDS_CLIENT_BACKOFF_MAX_INTERVAL=80ms", "XDS_CLIENT_BACKOFF_JITTER=false")
	size := regexp.MustCompile(`\(\d{7,8} vs`) // of the response, which has more to say than the resource
	without := func(s string) string { return size.ReplaceAllString(strings.TrimSpace(s), "(SIZE vs") }
	const reason = "a response may have at most 1000000 bytes here (XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES): " +
		"rpc error: code = ResourceExhausted desc = grpc: received message larger than max (SIZE vs. 1000000)"

	// As the first one, it keeps the process from being ready.
	sets(t, p, "1", big)
	r.awaitPage(t, "http", "/healthcheck", http.StatusServiceUnavailable,
		"no configuration from xds server "+p.Address+" yet: "+strings.Split(reason, "SIZE")[0])
	sets(t, p, "2", perHour("small", 5))
	r.awaitPage(t, "http", "/healthcheck", http.StatusOK, "OK")
	r.wantAnswer(t, "small | k=v", "OK | OK 5/3 left 4 reset")

	// Later, it changes nothing. Attempts come at ever longer intervals.
	from := len(r.log.Lines())
	sets(t, p, "3", big, perHour("small", 7))
	var waits []time.Duration
	for range 5 {
		var said struct{ Level, Address, Error, Wait string }
		var line string
		line, from = r.log.Await(t, from, logtest.Has(`"no xds stream"`))
		if err := json.Unmarshal([]byte(strings.Replace(line, "next_attempt_in", "wait", 1)), &said); err != nil {
			t.Fatal(err)
		}
		if said.Level != "warning" || said.Address != p.Address || without(said.Error) != reason {
			t.Errorf("the log says %s; want %q", line, reason)
		}
		wait, err := time.ParseDuration(said.Wait)
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, wait)
	}
	for i, wait := range waits[1:] {
		if wait != min(2*waits[i], 80*time.Millisecond) || waits[0] < 10*time.Millisecond {
			t.Errorf("waits: got %v, want them to double from at least 10ms to 80ms", waits)
			break
		}
	}
	r.wantAnswer(t, "small | k=v", "OK | OK 5/3 left 3 reset")
	if code, body := r.page(t, http.MethodGet, "http", "/healthcheck", ""); code != http.StatusOK || strings.TrimSpace(body) != "OK" {
		t.Errorf("/healthcheck: got %d %q", code, body)
	}
	sets(t, p, "4", perHour("small", 9))
	r.awaitAnswer(t, "small +1 | k=v +0", "OK | OK 9/3 left 7 reset")
}
