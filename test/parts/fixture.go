package parts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// Within is how long a test waits for a step that takes milliseconds on an idle machine.
const Within = 2 * time.Minute

// Soon returns a context for one such step, which ends with the test at the latest.
func Soon(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeoutCause(tb.Context(), Within, fmt.Errorf("nothing within %s", Within))
	tb.Cleanup(cancel)
	return ctx
}

// Eventually polls until done returns "". After a long time Eventually fails with the last text of
// done. The interval grows, because a page of metrics costs milliseconds.
func Eventually(tb testing.TB, done func() string) {
	tb.Helper()
	ctx := Soon(tb)
	const longest = 100 * time.Millisecond
	for interval := 5 * time.Millisecond; ; interval = min(2*interval, longest) {
		missing := done()
		if missing == "" {
			return
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			tb.Fatalf("after %s: %s", Within, missing)
		}
	}
}

// RootFor is Root for a test.
func RootFor(tb testing.TB) string {
	tb.Helper()
	root, err := Root()
	return must(tb, root, err)
}

// Read returns the text of a file.
func Read(tb testing.TB, path string) string {
	tb.Helper()
	text, err := os.ReadFile(path)
	return string(must(tb, text, err))
}

// Write writes a file that only this user may read.
func Write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// RedisFor starts a Redis that ends with the test. Without a redis-server the test skips or fails,
// see NeedRedis.
func RedisFor(tb testing.TB, options RedisOptions) *Redis {
	tb.Helper()
	return startFor(tb, StartRedis, options)
}

// SentinelsFor is RedisFor with a primary, two replicas and three Sentinels.
func SentinelsFor(tb testing.TB, options SentinelOptions) *Sentinels {
	tb.Helper()
	return startFor(tb, StartSentinels, options)
}

// ClusterFor is RedisFor with a cluster.
func ClusterFor(tb testing.TB, options RedisOptions) *Cluster {
	tb.Helper()
	return startFor(tb, StartCluster, options)
}

func startFor[T interface{ Kill() }, O any](tb testing.TB, start func(ctx context.Context, binary, dir string, o O) (T, error), o O) T {
	tb.Helper()
	all, err := start(Soon(tb), NeedRedis(tb, RootFor(tb)), tb.TempDir(), o)
	tb.Cleanup(must(tb, all, err).Kill)
	return all
}

// ProxyFor starts a proxy before an address, which ends with the test.
func ProxyFor(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	p, err := StartProxy(upstream)
	tb.Cleanup(must(tb, p, err).Close)
	return p
}

// BackendFor starts a backend that ends with the test.
func BackendFor(tb testing.TB) *Backend {
	tb.Helper()
	b, err := StartBackend("127.0.0.1:0")
	must(tb, b, err)
	tb.Cleanup(func() { _ = b.Close() })
	return b
}

// ControlPlaneFor starts a control plane that ends with the test.
func ControlPlaneFor(tb testing.TB, options ...grpc.ServerOption) *ControlPlane {
	tb.Helper()
	p, err := StartControlPlane(tb.Context(), options...)
	must(tb, p, err)
	tb.Cleanup(func() { p.Stop() }) // another one after a Restart
	return p
}

// EnvoyFor starts an Envoy with a bootstrap that has a listener named ingress, and returns the URL
// of that listener. The Envoy ends with the test. Without an Envoy the test skips or fails, see
// NeedEnvoy.
func EnvoyFor(tb testing.TB, bootstrap string) (e *Envoy, url string) {
	tb.Helper()
	binary, dir := NeedEnvoy(tb, RootFor(tb)), tb.TempDir()
	config := filepath.Join(dir, "envoy.yaml")
	Write(tb, config, bootstrap)
	e, err := StartEnvoy(Soon(tb), binary, config, dir)
	must(tb, e, err)
	tb.Cleanup(func() {
		e.Kill()
		if tb.Failed() {
			tb.Logf("Envoy's last lines:\n%s", e.Tail(30))
		}
	})
	address, err := e.Listener(Soon(tb), "ingress")
	return e, "http://" + must(tb, address, err)
}

// must returns a value, or ends the test with an error.
func must[T any](tb testing.TB, value T, err error) T {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	return value
}
