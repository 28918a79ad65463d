package deploy

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/test/parts"
)

// A question is a request of an Envoy, and the answer.
type question struct {
	descriptors string // key=value key=value +hits; and after " | " another
	want        string // of each: its code, its limit, the remaining hits
}

// awaitRoom waits until the current hour has room for a test: counts by the hour begin anew with
// it.
func awaitRoom(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)) < 20*time.Second {
		<-tick.C
	}
}

// ask asks the questions about a domain, in order.
func (s *service) ask(t *testing.T, secure credentials.TransportCredentials, domain string, questions []question) {
	t.Helper()
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(secure))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, name := range []string{"", "ratelimit"} {
		answer, err := healthgrpc.NewHealthClient(conn).Check(parts.Soon(t), &healthgrpc.HealthCheckRequest{Service: name})
		if err != nil || answer.GetStatus() != healthgrpc.HealthCheckResponse_SERVING {
			t.Errorf("gRPC health of %q: got %v, %v", name, answer.GetStatus(), err)
		}
	}
	for _, q := range questions {
		request := &ratelimitv3.RateLimitRequest{Domain: domain}
		for text := range strings.SplitSeq(q.descriptors, " | ") {
			d := new(rlsv3.RateLimitDescriptor)
			for word := range strings.FieldsSeq(text) {
				if hits, found := strings.CutPrefix(word, "+"); found {
					n, err := strconv.ParseUint(hits, 10, 32)
					if err != nil {
						t.Fatal(err)
					}
					d.HitsAddend = wrapperspb.UInt64(n)
					continue
				}
				key, value, _ := strings.Cut(word, "=")
				d.Entries = append(d.Entries, &rlsv3.RateLimitDescriptor_Entry{Key: key, Value: value})
			}
			request.Descriptors = append(request.Descriptors, d)
		}
		answer, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(parts.Soon(t), request)
		if err != nil {
			t.Errorf("%s: %v", q.descriptors, err)
			continue
		}
		if got := show(answer); got != q.want {
			t.Errorf("%s\n got %s\nwant %s", q.descriptors, got, q.want)
		}
	}
}

// show writes an answer: the verdict, and each status with its limit and the remaining hits.
func show(answer *ratelimitv3.RateLimitResponse) string {
	text := answer.GetOverallCode().String()
	for _, s := range answer.GetStatuses() {
		text += " | " + s.GetCode().String()
		if l := s.GetCurrentLimit(); l != nil {
			text += fmt.Sprintf(" %d/%s left %d", l.GetRequestsPerUnit(), strings.ToLower(l.GetUnit().String()), s.GetLimitRemaining())
		}
	}
	return text
}

func TestCentralReplicasAnswerAsTheirRulesSay(t *testing.T) {
	t.Parallel()
	m := buildManifests(t, "central")
	here := surroundings{secrets: map[string]string{"ratelimit-redis/auth": "weir:secret"}, with: map[string]string{"REDIS_URL": parts.Nowhere(t)}}
	s := startService(t, m, here)
	s.checkProbes(t, m.ratelimit(t))
	awaitRoom(t)
	s.ask(t, insecure.NewCredentials(), "edge", []question{
		{"client=a +20", "OK | OK 10/second left 0"},
		{"client=b +21", "OVER_LIMIT | OVER_LIMIT 10/second left 20"},
		{"path=/search client=a +5", "OK | OK 5/hour left 0"},
		{"path=/search client=a", "OVER_LIMIT | OVER_LIMIT 5/hour left 0"},
		{"path=/search client=b", "OK | OK 5/hour left 4"},
		{"path=/other client=a", "OK | OK"},
	})
	awaitPage(t, "http://"+s.Metrics+"/metrics", http.StatusOK,
		`ratelimit_service_rate_limit_over_limit{domain="edge",key1="path_/search",key2="client",key3=""} 1`)
	s.end(t, m)
}

func TestCentralReplicasShareTheirCounts(t *testing.T) {
	t.Parallel()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	binary := parts.NeedRedis(t, root)
	redis, err := parts.StartRedis(parts.Soon(t), binary, t.TempDir(), parts.RedisOptions{Username: "weir", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Kill)
	m := buildManifests(t, "central")
	here := surroundings{secrets: map[string]string{"ratelimit-redis/auth": "weir:secret"}, with: map[string]string{"REDIS_URL": redis.Address()}}
	one, other := startService(t, m, here), startService(t, m, here)
	for _, s := range []*service{one, other} {
		awaitPage(t, "http://"+s.Metrics+"/metrics", http.StatusOK, "\nweir_store_up 1\n")
	}
	awaitRoom(t)
	one.ask(t, insecure.NewCredentials(), "edge", []question{{"path=/search client=c +3", "OK | OK 5/hour left 2"}})
	other.ask(t, insecure.NewCredentials(), "edge", []question{
		{"path=/search client=c +2", "OK | OK 5/hour left 0"},
		{"path=/search client=c", "OVER_LIMIT | OVER_LIMIT 5/hour left 0"},
	})
}

func TestIstiosServiceAnswersAsItsRulesSay(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		t.Skip("there is no IPv6, on which the manifest has it listen")
	}
	m := buildManifests(t, "istio")
	s := startService(t, m, surroundings{with: map[string]string{"REDIS_URL": parts.Nowhere(t)}})
	s.checkProbes(t, m.ratelimit(t))
	awaitRoom(t)
	s.ask(t, insecure.NewCredentials(), "ratelimit", []question{
		{"PATH=/productpage +3", "OK | OK 5/hour left 2"},
		{"PATH=/productpage?u=normal +2", "OK | OK 5/hour left 0"},
		{"PATH=/productpage?u=test", "OVER_LIMIT | OVER_LIMIT 5/hour left 0"},
		{"PATH=/login", "OK | OK 100/hour left 99"},
		{"PATH=/logout", "OK | OK 100/hour left 99"},
	})
	s.end(t, m)
}

func TestContoursServiceAnswersAsItsRulesSay(t *testing.T) {
	t.Parallel()
	m := buildManifests(t, "contour")
	s := startService(t, m, surroundings{})
	s.checkProbes(t, m.ratelimit(t))
	awaitRoom(t)
	s.ask(t, insecure.NewCredentials(), "contour", []question{
		{"generic_key=foo", "OK | OK 1/hour left 0"},
		{"generic_key=foo", "OVER_LIMIT | OVER_LIMIT 1/hour left 0"},
		{"generic_key=bar", "OK | OK"},
		{"remote_address=192.0.2.1 +3", "OK | OK 3/hour left 0"},
		{"remote_address=192.0.2.1", "OVER_LIMIT | OVER_LIMIT 3/hour left 0"},
		{"remote_address=192.0.2.2", "OK | OK 3/hour left 2"},
		{"plan=free customer=acme", "OK | OK 2/hour left 1"},
		{"plan=free", "OK | OK"},
	})
	s.end(t, m)
}

// A control plane of Envoy Gateway shows its certificate and wants one; so does the rate limit
// service show one.
func TestEnvoyGatewaysServiceAnswersAsThePolicySays(t *testing.T) {
	t.Parallel()
	const route = "httproute/default/backend/rule/0/match/0/*=httproute/default/backend/rule/0/match/0/*"
	for _, file := range []string{"deployment.yaml", "deployment-memory.yaml"} {
		t.Run(file, func(t *testing.T) {
			m := readManifests(t, "envoy-gateway/testdata/"+file)
			s, authority := startEnvoyGatewaysService(t, m)
			s.checkProbes(t, m.ratelimit(t))
			awaitPage(t, "http://"+s.Debug+"/rlconfig", http.StatusOK, "default/limits.default/limits/rule/5")
			s.checkProbes(t, m.ratelimit(t))
			awaitRoom(t)
			// No certificate is shown: GRPC_SERVER_TLS_CA_CERT asks for none.
			trusting := credentials.NewTLS(&tls.Config{RootCAs: authority.Pool, ServerName: "localhost"})
			s.ask(t, trusting, "default/eg/http", []question{
				{route + " rule-0-match-0=alice +5", "OK | OK 5/hour left 0"},
				{route + " rule-0-match-0=alice", "OVER_LIMIT | OVER_LIMIT 5/hour left 0"},
				{route + " rule-0-match-0=bob", "OK | OK 5/hour left 4"},
				{route + " masked_remote_address=10.0.0.0/8 remote_address=10.1.2.3 +20", "OK | OK 20/hour left 0"},
				{route + " masked_remote_address=10.0.0.0/8 remote_address=10.1.2.3", "OVER_LIMIT | OVER_LIMIT 20/hour left 0"},
				{route + " masked_remote_address=10.0.0.0/8 remote_address=10.1.2.4", "OK | OK 20/hour left 19"},
				{route + " masked_remote_address=10.0.0.0/8", "OK | OK"},
				{route + " masked_remote_address=2001:db8::/32 +51", "OVER_LIMIT | OVER_LIMIT 50/hour left 0"},
				{route + " rule-2-match-0=rule-2-match-0 rule-2-method=rule-2-method +3", "OK | OK 2/hour left 0"},
				{route + " rule-3-match-0=acme +0", "OK | OK 100/hour left 100"},
				{route + " rule-3-match-0=acme +101", "OVER_LIMIT | OVER_LIMIT 100/hour left 0"},
				{route + " rule-3-match-0=acme +0", "OVER_LIMIT | OVER_LIMIT 100/hour left 0"},
				{route + " rule-3-match-0=other +0 | " + route + " rule-0-match-0=carol", "OK | OK 100/hour left 100 | OK 5/hour left 4"},
				{"httproute/default/other/rule/0/match/0/*=httproute/default/other/rule/0/match/0/* rule-0-match-0=alice", "OK | OK"},
			})
			s.ask(t, trusting, "default/limits", []question{
				{"default/limits/rule/5=default/limits/rule/5 rule-0-match--1=rule-0-match--1", "OK | OK 1000/hour left 999"},
				{"default/limits/rule/5=default/limits/rule/5", "OK | OK"},
			})
			s.end(t, m)
		})
	}
}

// startEnvoyGatewaysService starts the Deployment of Envoy Gateway beside a control plane with the
// rules of the policy, both over TLS. more is variables of its environment, NAME=text.
func startEnvoyGatewaysService(t *testing.T, m manifests, more ...string) (*service, *certtest.Authority) {
	t.Helper()
	authority := certtest.New(t, "envoy-gateway")
	pair := authority.Issue(t, "localhost", "127.0.0.1", "envoy-ratelimit")
	certs := map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key), "ca.crt": string(authority.PEM)}
	plane := parts.ControlPlaneFor(t, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair.TLS(t)}, ClientCAs: authority.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	if err := plane.Set("envoy-ratelimit", "1", readConfigs(t, "envoy-gateway/testdata/rules.yaml")...); err != nil {
		t.Fatal(err)
	}
	with := map[string]string{
		"CONFIG_GRPC_XDS_SERVER_URL": "localhost:" + strconv.Itoa(portOf(t, plane.Address)), "REDIS_URL": parts.Nowhere(t),
	}
	for _, variable := range more {
		name, text, _ := strings.Cut(variable, "=")
		with[name] = text
	}
	return startService(t, m, surroundings{volumes: map[string]map[string]string{"certs": certs}, with: with}), authority
}
