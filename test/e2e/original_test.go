package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/test/parts"
)

// A ratelimit is a running cmd/ratelimit.
type ratelimit struct {
	*parts.Ratelimit

	fresh int // values that undisturbed has used
}

// startRatelimit runs cmd/ratelimit with that environment, on ports the system chooses. The program
// serves its metrics for Prometheus.
func startRatelimit(t *testing.T, environ ...string) *ratelimit {
	t.Helper()
	process, err := parts.StartRatelimit(parts.Soon(t), os.Getenv(ratelimitVariable), append([]string{"USE_PROMETHEUS=true"}, environ...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, process.Process, false) })
	return &ratelimit{Ratelimit: process}
}

// originalRules is the RUNTIME_ROOT of the rules in testdata/original.
func originalRules(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("testdata", "original"))
	if err != nil {
		t.Fatal(err)
	}
	return "RUNTIME_ROOT=" + root
}

// runtimeRoot is the RUNTIME_ROOT of these rules.
func runtimeRoot(t *testing.T, rules string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	parts.Write(t, filepath.Join(root, "config", "e2e.yaml"), rules)
	return "RUNTIME_ROOT=" + root
}

// withRedis is the environment that has cmd/ratelimit count in a Redis. Health tells when it does.
func withRedis(r *parts.Redis) []string {
	return []string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + r.Address(), "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true"}
}

// awaitHealthy waits until health is good.
func (r *ratelimit) awaitHealthy(t *testing.T) {
	t.Helper()
	parts.Eventually(t, func() string {
		if code, text := fetch(t, "http://"+r.HTTP+"/healthcheck"); code != http.StatusOK {
			return fmt.Sprintf("/healthcheck: %d %s", code, text)
		}
		return ""
	})
}

// metric returns the sum of the samples of a metric whose labels contain all of the given ones.
func (r *ratelimit) metric(t *testing.T, name string, labels ...string) int {
	t.Helper()
	_, text := fetch(t, "http://"+r.Metrics+"/metrics")
	return sum(t, text, name, labels...)
}

// stat returns one of the counters on the debug port, by its whole name.
func (r *ratelimit) stat(t *testing.T, name string) int {
	t.Helper()
	_, text := fetch(t, "http://"+r.Debug+"/stats")
	return sum(t, text, name+":")
}

// undisturbed repeats play, each time with a new value, until the store has decided all hits of one
// run. A machine that is too busy decides some hits without Redis, and such a run proves nothing.
// undisturbed returns the results of that run. A run that returns nil is repeated too.
func undisturbed[T any](t *testing.T, r *ratelimit, play func(value string) []T) []T {
	t.Helper()
	var seen []T
	parts.Eventually(t, func() string {
		r.fresh++
		const away = "weir_store_fallback_decisions_total"
		before := r.metric(t, away)
		if seen = play(fmt.Sprintf("fresh-%d", r.fresh)); seen == nil {
			return "it was never played to its end"
		}
		if more := r.metric(t, away) - before; more > 0 {
			return fmt.Sprintf("%d hits were decided without Redis", more)
		}
		return ""
	})
	return seen
}

// keysOf returns the keys in a Redis, where there must be some.
func keysOf(t *testing.T, r *parts.Redis) []string {
	t.Helper()
	message, err := r.Do(parts.Soon(t), "KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := message.AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) == 0 {
		t.Error("nothing was counted in Redis")
	}
	return keys
}

// lines takes a text apart, without the spaces around its lines.
func lines(text string) []string {
	var all []string
	for line := range strings.Lines(strings.TrimSpace(text)) {
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

// startControlPlane serves rules by xDS.
func startControlPlane(t *testing.T) *parts.ControlPlane {
	t.Helper()
	once(t)
	return parts.ControlPlaneFor(t)
}

// xdsNode is the name that cmd/ratelimit gives itself to a control plane.
const xdsNode = "ratelimit-1"

// overXDS is the environment that has cmd/ratelimit take its rules from there.
func overXDS(p *parts.ControlPlane) []string {
	return []string{"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + p.Address, "CONFIG_GRPC_XDS_NODE_ID=" + xdsNode}
}

// setRules makes these all the rules of a control plane.
func setRules(t *testing.T, p *parts.ControlPlane, version string, all ...*confv3.RateLimitConfig) {
	t.Helper()
	if err := p.Set(xdsNode, version, all...); err != nil {
		t.Fatal(err)
	}
}

// parseRequest reads `domain key=value,key=value … [+hits]`: each word is a descriptor, but for the
// hits of the one before.
func parseRequest(t *testing.T, text string) *ratelimitv3.RateLimitRequest {
	t.Helper()
	words := strings.Fields(text)
	r := &ratelimitv3.RateLimitRequest{Domain: words[0]}
	for _, word := range words[1:] {
		if n, found := strings.CutPrefix(word, "+"); found {
			hits, err := strconv.ParseUint(n, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			r.Descriptors[len(r.Descriptors)-1].HitsAddend = wrapperspb.UInt64(hits)
			continue
		}
		d := new(commonv3.RateLimitDescriptor)
		for pair := range strings.SplitSeq(word, ",") {
			key, value, _ := strings.Cut(pair, "=")
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// answer sends the request that parseRequest makes of a text. A reset of the answer that is whole
// seconds within its unit becomes one second.
func (c client) answer(t *testing.T, text string) *ratelimitv3.RateLimitResponse {
	t.Helper()
	answer, err := c.service.ShouldRateLimit(parts.Soon(t), parseRequest(t, text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for _, s := range answer.GetStatuses() {
		longest := map[ratelimitv3.RateLimitResponse_RateLimit_Unit]int64{
			ratelimitv3.RateLimitResponse_RateLimit_SECOND: 1, ratelimitv3.RateLimitResponse_RateLimit_YEAR: year,
		}[s.GetCurrentLimit().GetUnit()]
		if d := s.GetDurationUntilReset(); d.GetSeconds() >= 1 && d.GetSeconds() <= longest && d.GetNanos() == 0 {
			s.DurationUntilReset = durationpb.New(time.Second)
		}
	}
	return answer
}

// answerOf is an answer with these statuses.
func answerOf(statuses ...*ratelimitv3.RateLimitResponse_DescriptorStatus) *ratelimitv3.RateLimitResponse {
	answer := &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK, Statuses: statuses}
	for _, s := range statuses {
		answer.OverallCode = max(answer.OverallCode, s.GetCode())
	}
	return answer
}

// noLimit is the status of a descriptor without a limit.
func noLimit() *ratelimitv3.RateLimitResponse_DescriptorStatus {
	return &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: ratelimitv3.RateLimitResponse_OK}
}

// perYear is the status of a limit per year at a count, its reset as answer leaves it.
func perYear(limit, count int) *ratelimitv3.RateLimitResponse_DescriptorStatus {
	s := noLimit()
	s.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{RequestsPerUnit: uint32(limit), Unit: ratelimitv3.RateLimitResponse_RateLimit_YEAR}
	s.LimitRemaining = uint32(max(0, limit-count))
	s.DurationUntilReset = durationpb.New(time.Second)
	if count > limit {
		s.Code = ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	return s
}
