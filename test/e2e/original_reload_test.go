package e2e

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/weirproxy/weir/internal/testing/certtest"
)

// ruleFile has a limit of five a year on the key k of a domain.
func ruleFile(domain string) string {
	return "domain: " + domain + "\ndescriptors:\n  - {key: k, rate_limit: {unit: year, requests_per_unit: 5}}\n"
}

// A source provides rules, at first the rules of the domain basic.
type source struct {
	environ []string
	add     func(t *testing.T) // the domain reload
	remove  func(t *testing.T) // the growth
}

// watchedFiles has its files come and go.
func watchedFiles(t *testing.T) source {
	t.Helper()
	root, aside := t.TempDir(), filepath.Join(t.TempDir(), "reload.yaml")
	inForce := filepath.Join(root, "config", "reload.yaml")
	lay(t, root, "config/basic.yaml", ruleFile("basic"))
	writeFile(t, aside, ruleFile("reload"))
	move := func(from, to string) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	return source{[]string{"RUNTIME_ROOT=" + root, "RUNTIME_WATCH_ROOT=false"}, move(aside, inForce), move(inForce, aside)}
}

// watchedRoot has RUNTIME_ROOT, which is a symbolic link, point somewhere else.
func watchedRoot(t *testing.T) source {
	t.Helper()
	top := t.TempDir()
	for _, version := range []string{"v1", "v2"} {
		lay(t, top, version+"/sub/limits/basic.yaml", ruleFile("basic"))
	}
	lay(t, top, "v2/sub/limits/reload.yaml", ruleFile("reload"))
	point := func(version string) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			next := filepath.Join(top, "next")
			if err := os.Symlink(version, next); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(next, filepath.Join(top, "current")); err != nil {
				t.Fatal(err)
			}
		}
	}
	point("v1")(t)
	return source{[]string{
		"RUNTIME_ROOT=" + filepath.Join(top, "current"), "RUNTIME_SUBDIRECTORY=sub", "RUNTIME_APPDIRECTORY=limits",
	}, point("v2"), point("v1")}
}

// snapshots has a control plane give other snapshots.
func snapshots(t *testing.T) source {
	t.Helper()
	p := startControlPlane(t)
	set := func(version string, domains ...string) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			const year confv3.RateLimitUnit = 6 // which the released enumeration lacks
			var all []*confv3.RateLimitConfig
			for _, domain := range domains {
				all = append(all, &confv3.RateLimitConfig{Name: domain, Domain: domain, Descriptors: []*confv3.RateLimitDescriptor{
					{Key: "k", RateLimit: &confv3.RateLimitPolicy{Unit: year, RequestsPerUnit: 5}},
				}})
			}
			setRules(t, p, version, all...)
		}
	}
	set("1", "basic")(t)
	return source{overXDS(p), set("2", "basic", "reload"), set("3", "basic")}
}

// lay writes a file below root, and the directories it is in.
func lay(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, content)
}

func TestADomainComesAndGoesAndTheCountsOfAnotherGoOn(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) source{
		"RUNTIME_WATCH_ROOT=false": watchedFiles, "RUNTIME_WATCH_ROOT=true": watchedRoot, "GRPC_XDS_SOTW": snapshots,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := open(t)
			r := startRatelimit(t, from.environ...)
			r.awaitHealthy(t)
			c := dial(t, r.GRPC)
			checks := func(asked string, want *ratelimitv3.RateLimitResponse_DescriptorStatus) {
				t.Helper()
				if diff := cmp.Diff(answerOf(want), c.answer(t, asked), protocmp.Transform()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", asked, diff)
				}
			}
			awaits := func(asked string, want *ratelimitv3.RateLimitResponse_DescriptorStatus) {
				t.Helper()
				eventually(t, func() string { return cmp.Diff(answerOf(want), c.answer(t, asked), protocmp.Transform()) })
			}
			checks("basic k=v", perYear(5, 1))
			checks("reload k=v", noLimit())
			from.add(t)
			awaits("reload k=v +0", perYear(5, 0))
			checks("reload k=v", perYear(5, 1))
			checks("basic k=v", perYear(5, 2))
			from.remove(t)
			awaits("reload k=v", noLimit())
			checks("basic k=v", perYear(5, 3))
			// Each change was one.
			for name, want := range map[string]int{"config_load_success": 3, "config_load_error": 0} {
				if got := r.stat(t, "ratelimit.service."+name); got != want {
					t.Errorf("%s: got %d, want %d", name, got, want)
				}
			}
		})
	}
}

func TestACertificateOfAnotherAuthorityComesIntoForceInPlace(t *testing.T) {
	t.Parallel()
	old, next, clients, dir := certtest.New(t, "old"), certtest.New(t, "new"), certtest.New(t, "clients"), t.TempDir()
	certificate, key := old.Issue(t, "localhost").Write(t, dir)
	r := startRatelimit(t, originalRules(t), "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+certificate, "GRPC_SERVER_TLS_KEY="+key,
		"GRPC_CLIENT_TLS_CACERT="+certtest.Write(t, filepath.Join(t.TempDir(), "ca.crt"), clients.PEM), "GRPC_CLIENT_TLS_SAN=envoy.local")
	pair := clients.Issue(t, "envoy.local").TLS(t)
	trusting := func(a *certtest.Authority) client {
		t.Helper()
		conn, err := grpc.NewClient(r.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: a.Pool, ServerName: "localhost", Certificates: []tls.Certificate{pair},
		})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return client{conn, ratelimitv3.NewRateLimitServiceClient(conn)}
	}
	checks := func(name string, c client, want codes.Code) {
		t.Helper()
		_, err := c.service.ShouldRateLimit(deadline(t), parseRequest(t, "another key2=tls"))
		if got := status.Code(err); got != want {
			t.Errorf("%s: got %v (%v), want %v", name, got, err, want)
		}
	}
	before := trusting(old)
	checks("who trusts the old authority, before", before, codes.OK)
	checks("who trusts the new authority, before", trusting(next), codes.Unavailable)
	mark := r.Mark()
	next.Issue(t, "localhost").Write(t, dir)
	if _, err := r.AwaitMessage(deadline(t), mark, "certificates loaded"); err != nil {
		t.Fatal(err)
	}
	checks("who trusts the new authority", trusting(next), codes.OK)
	checks("who trusts the old authority", trusting(old), codes.Unavailable)
	checks("who was connected before", before, codes.OK)
}
