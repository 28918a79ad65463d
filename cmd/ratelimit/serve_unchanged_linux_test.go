package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/test/parts"
)

// rootVariable names the root directory of a test that runs in a world of its own.
const rootVariable = "RATELIMIT_TEST_ROOT"

// The environments that platforms start the original with, word for word: with their hosts, ports
// and paths. Each is tested by a process of its own in namespaces of its own, where those are free
// to be had.
func TestPlatformsEnvironmentsServeUnchanged(t *testing.T) {
	for name, environment := range platforms() {
		t.Run(name, func(t *testing.T) {
			needIPv6(t, environment)
			root := os.Getenv(rootVariable)
			if root == "" {
				t.Parallel()
				root = t.TempDir()
			}
			if parts.InWorld(t, rootVariable+"="+root) {
				serveUnchanged(t, environment, root)
			}
		})
	}
}

// serveUnchanged builds the world that a platform has around the rate limit service, and starts it
// there.
func serveUnchanged(t *testing.T, environment, root string) {
	t.Helper()
	authority := certtest.New(t, "ca")
	pair := authority.Issue(t, "localhost", "envoy-gateway")
	for _, dir := range []string{"certs", "redis-certs"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		pair.Write(t, filepath.Join(root, dir))
	}
	certtest.Write(t, filepath.Join(root, "certs", "ca.crt"), authority.PEM)
	// Nobody listens where Redis and the collector of traces should be.
	lay(t, root, map[string]string{
		"etc/hosts": "127.0.0.1 localhost envoy-gateway ai-gateway-controller redis redis.redis-system.svc.cluster.local trace-collector\n",
	})
	c := read(t, strings.Fields(environment)...)
	if c.ConfigType == configFile {
		lay(t, root, configMap("data/ratelimit/config"))
	}
	if err := unix.Chroot(root); err != nil {
		t.Fatal(err)
	}
	t.Chdir("/")
	p := platformOf(t, environment, authority, pair)
	if p.plane != nil {
		p.plane.Stop()
		p.plane.Address = c.XDS.Address
		if err := p.plane.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.plane.Stop)
	}
	var pairs []string
	for pair := range strings.FieldsSeq(environment) {
		if name, value, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, value) // is read from the environment of the process
		}
		pairs = append(pairs, pair)
	}
	r := launch(pairs)
	t.Cleanup(func() {
		r.stop()
		r.awaitEnd(t)
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	for server, address := range map[string]string{
		"grpc": c.GRPC.Address, "http": c.HTTP.Address, "debug": c.Debug.Address, "metrics": c.Metrics.Address, "admin": c.Admin.Address,
	} {
		if address != "" {
			r.address[server] = reachable(t, address)
		}
	}
	var err error
	if r.conn, err = grpc.NewClient(r.address["grpc"], grpc.WithTransportCredentials(p.client)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
	p.wantToServe(t, r)
}

// reachable waits until somebody listens on an address, and returns it as a client names it.
func reachable(t *testing.T, address string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if host == "::" {
		host = "::1"
	} else {
		host = "127.0.0.1"
	}
	address = net.JoinHostPort(host, port)
	eventually(t, within, func() string {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err.Error()
		}
		_ = conn.Close()
		return ""
	})
	return address
}
