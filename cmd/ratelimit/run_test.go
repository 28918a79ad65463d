package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	secured "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/app"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/test/parts"
)

// within is how long a test waits for what takes milliseconds on an idle machine.
const within = 2 * time.Minute

type running struct {
	log     *logtest.Log
	address map[string]string // by the name of what serves
	conn    *grpc.ClientConn
	stop    context.CancelFunc
	ended   chan error
}

// anyPort has it listen on any ports of this machine and log where.
func anyPort() []string {
	return environ(
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"PROMETHEUS_ADDR=127.0.0.1:0", "WEIR_ADMIN_ADDRESS=127.0.0.1:0", "LOG_LEVEL=info", "LOG_FORMAT=json",
	)
}

// start runs the service until the test ends; of variables that are given twice the later counts.
// The rules are the text, or come from elsewhere when that is empty.
func start(t *testing.T, rules string, environment ...string) *running {
	t.Helper()
	all := append(anyPort(), "USE_STATSD=false")
	if rules != "" {
		root := t.TempDir()
		lay(t, root, map[string]string{"config/rules.yaml": rules})
		all = append(all, "RUNTIME_ROOT="+root)
	}
	return startAs(t, append(all, environment...), insecure.NewCredentials())
}

// startAs runs the service with exactly that environment, which must log where it listens as JSON,
// until the test ends.
func startAs(t *testing.T, environment []string, secure secured.TransportCredentials) *running {
	t.Helper()
	r := launch(environment)
	t.Cleanup(func() {
		r.stop()
		r.awaitEnd(t)
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	r.connect(t, secure)
	return r
}

// shortDrain is the drain timeout in tests that claim nothing about the end: programs wait for four
// fifths of it.
const shortDrain = 100 * time.Millisecond

// launch runs the service with exactly that environment until somebody calls stop. The service
// drains for shortDrain at most.
func launch(environment []string) *running { return launchWith(environment, shortDrain) }

func launchWith(environment []string, drain time.Duration) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{log: new(logtest.Log), address: make(map[string]string), stop: cancel, ended: make(chan error, 1)}
	go func() {
		c, err := configure(environment, r.log)
		if err == nil {
			c.DrainTimeout = drain
			err = app.Named(app.Run(ctx, c), partVariables())
		}
		r.ended <- err
	}()
	return r
}

func (r *running) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Errorf("run: %v", err)
		}
	case <-time.After(within):
		t.Error("the service does not end")
	}
}

// connect waits until the service is ready, and finds out where it listens.
func (r *running) connect(t *testing.T, secure secured.TransportCredentials) {
	t.Helper()
	r.log.Await(t, 0, logtest.Has(`"@message":"ready"`))
	for _, line := range r.log.Lines() {
		var l struct{ Server, Address string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		r.address[l.Server] = l.Address
	}
	var err error
	if r.conn, err = grpc.NewClient(r.address["grpc"], grpc.WithTransportCredentials(secure)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
}

func (r *running) ask(t *testing.T, request *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return ratelimitv3.NewRateLimitServiceClient(r.conn).ShouldRateLimit(ctx, request)
}

func (r *running) page(t *testing.T, method, server, path, body string) (int, string) {
	t.Helper()
	answer, text := r.fetch(t, method, server, path, body)
	return answer.StatusCode, text
}

// fetch makes one request of HTTP and returns the answer, which is read, with its body.
func (r *running) fetch(t *testing.T, method, server, path, body string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	answer, text, err := parts.Page(ctx, method, "http://"+r.address[server]+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, text
}

// awaitPage waits until a page has that code and a text in it.
func (r *running) awaitPage(t *testing.T, server, path string, code int, part string) {
	t.Helper()
	eventually(t, within, func() string {
		got, body := r.page(t, http.MethodGet, server, path, "")
		if got == code && strings.Contains(body, part) {
			return ""
		}
		return fmt.Sprintf("%s: got %d %q; want %d and %q", path, got, body, code, part)
	})
}

// eventually polls until missing returns "", and fails with what it said last when that takes too
// long.
func eventually(t *testing.T, long time.Duration, missing func() string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond) // several tests poll at once, and spend the CPU of the polled
	defer tick.Stop()
	for deadline := time.Now().Add(long); ; <-tick.C {
		said := missing()
		if said == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", long, said)
		}
	}
}
