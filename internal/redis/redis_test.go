package redis

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

func TestEachKindOfErrorIsItsOwn(t *testing.T) {
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
	t.Parallel()
	certificates := must.Get(parts.NewCertificates(t.TempDir()))(t)
	files := Options{CA: certificates.CA, Cert: certificates.ClientCert, Key: certificates.ClientKey}
	locked := parts.RedisOptions{Username: "all", Password: "pass/word@", Users: []string{"weir on >se:cret ~* &* +@all"}, TLS: certificates}
	for _, test := range []struct {
		name string
		// start returns the options of a server, a text in the log, and texts in CLIENT INFO.
		start func(t *testing.T) (Options, string, []string)
	}{
		{"TCP", func(t *testing.T) (Options, string, []string) {
			t.Helper()
			r := startRedis(t, parts.RedisOptions{})
			return Options{URLs: urlOf("redis", r.Address())}, "topology=single", []string{"name=weir", "db=0", "user=default"}
		}},
		{"database_and_password", func(t *testing.T) (Options, string, []string) {
			t.Helper()
			r := startRedis(t, parts.RedisOptions{Password: "secret"})
			return Options{URLs: []string{"redis://:secret@" + r.Address() + "/3"}}, "***", []string{"db=3", "user=default"}
		}},
		{"socket", func(t *testing.T) (Options, string, []string) {
			t.Helper()
			r := startRedis(t, parts.RedisOptions{Password: "secret"})
			if r.Socket() == "" {
				t.Skip("the path of the temporary folder is too long for a socket")
			}
			return Options{URLs: []string{"unix://:secret@" + r.Socket() + "?db=2"}}, "unix://", []string{"db=2", "flags=U"}
		}},
		{"TLS_certificate_user", func(t *testing.T) (Options, string, []string) {
			t.Helper()
			r := startRedis(t, locked)
			o := files
			o.URLs = []string{"rediss://weir:se%3Acret@" + r.Address()}
			return o, "rediss://weir:***@", []string{"user=weir"}
		}},
		{"sentinel_TLS", func(t *testing.T) (Options, string, []string) {
			t.Helper()
			s := started(t, parts.StartSentinels, parts.SentinelOptions{Data: locked, Username: "watch", Password: "hidden"})
			o := files
			o.URLs = []string{"rediss-sentinel://weir:se%3Acret@" + strings.Join(s.Addresses(), ",") + "/" + parts.SentinelName + "/1?sentinel_username=watch&sentinel_password=hidden"}
			return o, "topology=sentinel", []string{"db=1", "user=weir"}
		}},
		{"cluster_TLS", func(t *testing.T) (Options, string, []string) {
			t.Helper()
			c := steadyCluster(t, locked)
			o := files
			o.URLs = urlOf("rediss-cluster", c.Addresses()[:2]...)
			o.PasswordFile = newSecret(t, map[string]string{"login": "weir:se:cret\n"}).path("login")
			return o, "topology=cluster", []string{"user=weir"}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, logged, want := test.start(t)
			c, lines := connectedTo(t, o)
			if err := lines.has(logged); err != nil {
				t.Error(err)
			}
			if strings.Contains(strings.Join(lines.Lines(), ""), "secret") {
				t.Errorf("a password is logged:\n%s", lines.Lines())
			}
			client := must.Get(c.Client())(t)
			info := must.Get(client.Do(soon(t), client.B().ClientInfo().Build()).ToString())(t)
			for _, part := range want {
				if !strings.Contains(info, part) {
					t.Errorf("%q is not in %s", part, info)
				}
			}
			if err := c.patiently(); err != nil {
				t.Error(err)
			}
			// rueidis dials all addresses of a cluster at once, and closes a second connection to a node
			// only later.
			for address, node := range client.Nodes() {
				await(t, "one connection to "+address, func() error {
					list, err := node.Do(soon(t), node.B().Arbitrary("CLIENT", "LIST").Build()).ToString()
					if n := strings.Count(list, "name=weir "); err != nil || n != 1 {
						return fmt.Errorf("%d connections, %w:\n%s", n, err, list)
					}
					return nil
				})
			}
			if n := len(client.Nodes()); c.Cluster() != (n >= 3) { // replicas follow later
				t.Errorf("%d nodes", n)
			}
		})
	}
}

func TestTheCertificateOfRedisIsForItsHostUnlessAnyNameWillDo(t *testing.T) {
	const name = "redis.internal" // not the dialed host
	certificates := must.Get(parts.NewCertificates(t.TempDir(), name))(t)
	others := must.Get(parts.NewCertificates(t.TempDir(), name))(t)
	r := startRedis(t, parts.RedisOptions{TLS: certificates})
	for _, test := range []struct {
		name string
		more Options // besides the URL and the client's certificate
		want string  // in the error, "" for none
	}{
		{"the host dialed", Options{CA: certificates.CA}, "127.0.0.1"},
		{"the name", Options{CA: certificates.CA, ServerName: name}, ""},
		{"any name", Options{CA: certificates.CA, ServerName: AnyServerName}, ""},
		{"any name of another authority", Options{CA: others.CA, ServerName: AnyServerName}, "signed by unknown authority"},
		{"any name that the system vouches for", Options{ServerName: AnyServerName}, "signed by unknown authority"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := test.more
			o.URLs, o.Cert, o.Key = urlOf("rediss", r.Address()), certificates.ClientCert, certificates.ClientKey
			c, lines, err := attempt(t, o)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(c.patiently(), lines.has("redis connected")); err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want ErrUnavailable, with %q", err, test.want)
			}
			if err := c.works(); !errors.Is(err, ErrUnavailable) {
				t.Errorf("a command: got %v; want ErrUnavailable", err)
			}
		})
	}
}
