package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/test/parts"
)

// within is how long a test waits for what takes milliseconds on an idle machine.
const within = 2 * time.Minute

// running is a sidecar that runs in this process.
type running struct {
	log     *logtest.Log
	read    int // lines of the log that await has seen
	address map[string]string
	ended   chan error
}

// logLine is what tests need of a line of the log.
type logLine struct {
	Message string   `json:"msg"`
	Server  string   `json:"server"`
	Network string   `json:"network"`
	Address string   `json:"address"`
	Cause   string   `json:"cause"`
	Errors  []string `json:"errors"`
}

// start runs a sidecar, on any port, until the test ends or it is stopped. Its drain is short, for
// tests that claim nothing about the end.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{log: new(logtest.Log), address: make(map[string]string), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	args = append([]string{
		"serve", "--log-format=json", "--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=127.0.0.1:0",
		"--drain-timeout=100ms",
	}, args...)
	go func() { r.ended <- run(ctx, args, strings.NewReader(""), io.Discard, r.log); close(r.ended) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err, first := <-r.ended:
			if first && err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(within):
			t.Error("the sidecar does not end")
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	r.await(t, "ready")
	return r
}

// await returns the next line of the log with that message; what comes before it is skipped.
func (r *running) await(t *testing.T, message string) logLine {
	t.Helper()
	var line logLine
	_, r.read = r.log.Await(t, r.read, func(text string) bool {
		line = logLine{}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("log line %q: %v", text, err)
		}
		if line.Message == "listening" {
			r.address[line.Server+" "+line.Network] = line.Address
		}
		return line.Message == message
	})
	return line
}

// awaitEnd wants the sidecar to end without an error.
func (r *running) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Errorf("serve: got %v, want nil", err)
		}
	case <-time.After(within):
		t.Fatal("the sidecar does not end")
	}
}

// raise sends this process a signal, which the running sidecar catches.
func raise(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		t.Fatal(err)
	}
}

// dial connects to the gRPC service.
func (r *running) dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// rulesOf are rules that let a user pass so many times.
func rulesOf(requests string) string {
	return "domain: test\ndescriptors:\n- key: user\n  rate_limit: {unit: year, requests_per_unit: " + requests + "}\n"
}

// writeRules writes rules in one step and returns the path.
func writeRules(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path+".next", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// requestFor asks about one user.
func requestFor(user string) *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{Domain: "test", Descriptors: []*rlsv3.RateLimitDescriptor{
		{Entries: []*rlsv3.RateLimitDescriptor_Entry{{Key: "user", Value: user}}},
	}}
}

// limitFor returns the limit that is in force.
func limitFor(t *testing.T, conn *grpc.ClientConn) uint32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	answer, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, requestFor("x"))
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit()
}

// get returns a page and its status code.
func (r *running) get(t *testing.T, path string) (int, string) {
	t.Helper()
	return r.fetch(t, http.MethodGet, path, "")
}

// post sends a body to a page and returns the answer and its status code.
func (r *running) post(t *testing.T, path, body string) (int, string) {
	t.Helper()
	return r.fetch(t, http.MethodPost, path, body)
}

func (r *running) fetch(t *testing.T, method, path, send string) (int, string) {
	t.Helper()
	answer, text, err := parts.Page(t.Context(), method, "http://"+r.address["http tcp"]+path, send)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, text
}

// rulesFile writes rules to a file of its own.
func rulesFile(t *testing.T, content string) string {
	t.Helper()
	return writeRules(t, filepath.Join(t.TempDir(), "rules.yaml"), content)
}
