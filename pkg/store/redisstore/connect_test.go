package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

func TestReasonsAreToldApartByTheirKind(t *testing.T) {
	refused := func(port int) error {
		return unavailable(&net.OpError{Op: "dial", Addr: &net.TCPAddr{Port: port}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})
	}
	reset := unavailable(fmt.Errorf("a:1: no answer: %w", os.NewSyscallError("read", syscall.ECONNRESET)))
	expired := func(detail string) error {
		return unavailable(fmt.Errorf("TLS: %w", &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Detail: detail}}))
	}
	for _, test := range []struct {
		name string
		a, b error
		same bool
	}{
		{"port", refused(1), refused(2), true},
		{"reason", refused(1), reset, false},
		{"detail", expired("now is 1"), expired("now is 2"), true},
		{"TLS", expired(""), reset, false},
		{"version", &unfitError{"1", ErrVersion}, &unfitError{"2", ErrVersion}, true},
		{"version_or_topology", &unfitError{"1", ErrVersion}, &unfitError{"1", ErrTopology}, false},
	} {
		if a, b := kindOf(test.a), kindOf(test.b); (a == b) != test.same {
			t.Errorf("%s: %v is %q, %v is %q", test.name, test.a, a, test.b, b)
		}
	}
}

func TestConnectsToEveryTopology(t *testing.T) {
	binary := redisBinary(t)
	certificates, err := parts.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	files := TargetOptions{CA: certificates.CA, Cert: certificates.ClientCert, Key: certificates.ClientKey}
	locked := parts.RedisOptions{Username: "all", Password: "pass/word@", Users: []string{"weir on >se:cret ~* &* +@all"}, TLS: certificates}
	start := func(o parts.RedisOptions) *parts.Redis {
		r, err := parts.StartRedis(soon(t), binary, t.TempDir(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Kill)
		return r
	}
	for _, test := range []struct {
		name string
		// start returns where a server is and what its log is to say, and what a client of it is to say of itself.
		start func(t *testing.T) (TargetOptions, string, []string)
	}{
		{"TCP", func(*testing.T) (TargetOptions, string, []string) {
			r := start(parts.RedisOptions{})
			return TargetOptions{URLs: urlOf("redis", r.Address())}, "topology=single", []string{"name=weir", "db=0", "user=default"}
		}},
		{"database_and_password", func(*testing.T) (TargetOptions, string, []string) {
			r := start(parts.RedisOptions{Password: "secret"})
			return TargetOptions{URLs: []string{"redis://:secret@" + r.Address() + "/3"}}, "***", []string{"db=3", "user=default"}
		}},
		{"socket", func(*testing.T) (TargetOptions, string, []string) {
			r := start(parts.RedisOptions{Password: "secret"})
			if r.Socket() == "" {
				t.Skip("the path of the temporary folder is too long for a socket")
			}
			return TargetOptions{URLs: []string{"unix://" + r.Socket() + "?db=2"}, Password: "secret"}, "unix://", []string{"db=2", "flags=U"}
		}},
		{"TLS_certificate_user", func(*testing.T) (TargetOptions, string, []string) {
			r := start(locked)
			o := files
			o.URLs = []string{"rediss://weir:se%3Acret@" + r.Address()}
			return o, "rediss://weir:***@", []string{"user=weir"}
		}},
		{"sentinel_TLS", func(t *testing.T) (TargetOptions, string, []string) {
			t.Helper()
			s, err := parts.StartSentinels(soon(t), binary, t.TempDir(), parts.SentinelOptions{Data: locked, Username: "watch", Password: "hidden"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Kill)
			o := files
			o.URLs = []string{"rediss-sentinel://weir:se%3Acret@" + strings.Join(s.Addresses(), ",") + "/" + parts.SentinelName + "/1"}
			o.SentinelUsername, o.SentinelPassword = "watch", "hidden"
			return o, "topology=sentinel", []string{"db=1", "user=weir"}
		}},
		{"cluster_TLS", func(t *testing.T) (TargetOptions, string, []string) {
			t.Helper()
			c, err := parts.StartCluster(soon(t), binary, t.TempDir(), locked)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Kill)
			o := files
			o.URLs = urlOf("rediss-cluster", c.Addresses()[:2]...)
			o.Username, o.Password = "weir", "se:cret"
			return o, "topology=cluster", []string{"user=weir"}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, logged, want := test.start(t)
			c, lines := connectedTo(t, o)
			if err := lines.has(logged); err != nil {
				t.Error(err)
			}
			if strings.Contains(strings.Join(lines.Lines(), ""), "secret") {
				t.Errorf("a password is logged:\n%s", lines.Lines())
			}
			client, err := c.client()
			if err != nil {
				t.Fatal(err)
			}
			info, err := client.Do(soon(t), client.B().ClientInfo().Build()).ToString()
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range want {
				if !strings.Contains(info, part) {
					t.Errorf("%q is not in %s", part, info)
				}
			}
			if err := c.patiently(); err != nil {
				t.Error(err)
			}
			for address, node := range client.Nodes() {
				list, err := node.Do(soon(t), node.B().Arbitrary("CLIENT", "LIST").Build()).ToString()
				if n := strings.Count(list, "name=weir "); err != nil || n != 1 {
					t.Errorf("%s: %d connections, %v:\n%s", address, n, err, list)
				}
			}
			if n := len(client.Nodes()); c.cluster() != (n >= 3) { // replicas are said later
				t.Errorf("%d nodes", n)
			}
		})
	}
}
