package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/test/parts"
)

// worldVariable names the root directory of a test that runs in a world of its own.
const worldVariable = "RATELIMIT_TEST_WORLD"

// The environments that platforms start the original with, word for word: with their hosts, ports
// and paths. Each is tested by a process of its own in namespaces of its own, where those are free
// to be had.
func TestPlatformsEnvironmentsServeUnchanged(t *testing.T) {
	for name, environment := range platforms() {
		t.Run(name, func(t *testing.T) {
			needIPv6(t, environment)
			if root := os.Getenv(worldVariable); root != "" {
				serveUnchanged(t, environment, root)
				return
			}
			t.Parallel()
			inAWorld(t)
		})
	}
}

// inAWorld runs the same test where nobody else has ports, and its own directory is the root of all
// files.
func inAWorld(t *testing.T) {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	c := exec.CommandContext(t.Context(), binary, "-test.run="+name, "-test.v", "-test.count=1")
	c.Env = []string{worldVariable + "=" + t.TempDir(), "GORACE=atexit_sleep_ms=0"}
	root := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
	}
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: root(os.Getuid()), GidMappings: root(os.Getgid()),
	}
	out, err := c.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		if parts.Required("namespaces") {
			t.Fatalf("namespaces: %v", err)
		}
		t.Skipf("there are no namespaces to be had: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}

// serveUnchanged builds the world that a platform has around the rate limit service, and starts it
// there.
func serveUnchanged(t *testing.T, environment, root string) {
	t.Helper()
	if err := startLoopback(); err != nil {
		t.Fatal(err)
	}
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

// startLoopback switches 127.0.0.1 and ::1 on, which a new network namespace has switched off.
func startLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("loopback", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
}
