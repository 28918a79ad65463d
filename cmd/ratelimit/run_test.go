package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	secured "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// within is how long a test waits for what takes milliseconds on an idle machine.
const within = 30 * time.Second

// lineLog keeps what is written to it. It is safe for concurrent use.
type lineLog struct {
	mu      sync.Mutex    // guards the rest
	text    bytes.Buffer  // all that was written
	changed chan struct{} // closed and replaced when text grows
}

func newLineLog() *lineLog { return &lineLog{changed: make(chan struct{})} }

func (l *lineLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
	return l.text.Write(b)
}

// all returns what was written so far, and a channel that is closed when there is more.
func (l *lineLog) all() (string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String(), l.changed
}

// running is a service that runs in this process.
type running struct {
	log     *lineLog
	address map[string]string // by the name of what serves
	conn    *grpc.ClientConn
}

// anyPort has it listen on any ports of this machine and log where.
func anyPort() []string {
	return environ(
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"PROMETHEUS_ADDR=127.0.0.1:0", "LOG_LEVEL=info", "LOG_FORMAT=json",
	)
}

// start runs the service until the test ends; of variables that are given twice the later counts. The rules are the text, or
// come from elsewhere when that is empty.
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

// startAs runs the service with exactly that environment, which must log where it listens as JSON.
func startAs(t *testing.T, environment []string, secure secured.TransportCredentials) *running {
	t.Helper()
	r := &running{log: newLineLog(), address: make(map[string]string)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, environment, r.log) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(within):
			t.Error("the service does not end")
		}
		if text, _ := r.log.all(); t.Failed() {
			t.Logf("log:\n%s", text)
		}
	})
	r.awaitLog(t, `"@message":"ready"`)
	text, _ := r.log.all()
	for line := range strings.Lines(text) {
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
	return r
}

// awaitLog waits until the log has a text.
func (r *running) awaitLog(t *testing.T, part string) {
	t.Helper()
	deadline := time.After(within)
	for {
		text, more := r.log.all()
		if strings.Contains(text, part) && strings.HasSuffix(text, "\n") {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("no %q in the log within %s:\n%s", part, within, text)
		}
	}
}

// ask makes one request.
func (r *running) ask(t *testing.T, request *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return ratelimitv3.NewRateLimitServiceClient(r.conn).ShouldRateLimit(ctx, request)
}

// page makes one request of HTTP.
func (r *running) page(t *testing.T, method, server, path, body string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+r.address[server]+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// awaitPage waits until a page has that code and a text in it.
func (r *running) awaitPage(t *testing.T, server, path string, code int, part string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; <-tick.C {
		got, body := r.page(t, http.MethodGet, server, path, "")
		if got == code && strings.Contains(body, part) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: got %d %q; want %d and %q", path, got, body, code, part)
		}
	}
}
