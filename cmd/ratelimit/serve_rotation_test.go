package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	secured "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
)

// mounted is a directory as Kubernetes mounts a Secret: all of it changes in one step.
type mounted string

func (s mounted) turn(t *testing.T, version string, files map[string][]byte) {
	t.Helper()
	to := filepath.Join(string(s), ".."+version)
	must.Do(t, os.Mkdir(to, 0o700))
	for name, data := range files {
		certtest.Write(t, filepath.Join(to, name), data)
		if err := os.Symlink(filepath.Join("..data", name), s.file(name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	must.Do(t, os.Symlink(".."+version, s.file("..next")))
	must.Do(t, os.Rename(s.file("..next"), s.file("..data")))
}

func (s mounted) file(name string) string { return filepath.Join(string(s), name) }

// An authority takes the place of another while requests and new connections go on: first beside
// it, then alone.
func TestCertificatesMayTurnUnderTraffic(t *testing.T) {
	t.Parallel()
	before, after, dir := certtest.New(t, "before"), certtest.New(t, "after"), mounted(t.TempDir())
	files := func(pair certtest.Pair, ca ...[]byte) map[string][]byte {
		var bundle []byte
		for _, one := range ca {
			bundle = append(bundle, one...)
		}
		return map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key, "ca.crt": bundle}
	}
	first, second := before.Issue(t, "first", "localhost"), after.Issue(t, "second", "localhost")
	dir.turn(t, "1", files(first, before.PEM))
	both := x509.NewCertPool()
	both.AppendCertsFromPEM(before.PEM)
	both.AppendCertsFromPEM(after.PEM)
	as := func(of *certtest.Authority, name string) *tls.Config {
		return &tls.Config{RootCAs: both, ServerName: "localhost", Certificates: []tls.Certificate{of.Issue(t, name, name).TLS(t)}}
	}
	root := t.TempDir()
	lay(t, root, map[string]string{"config/a.yaml": "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: 1000000000}}\n"})
	envoy := as(before, "envoy.local")
	r := startAs(t, append(anyPort(), "USE_STATSD=false", "RUNTIME_ROOT="+root, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+dir.file("tls.crt"),
		"GRPC_SERVER_TLS_KEY="+dir.file("tls.key"), "GRPC_CLIENT_TLS_CACERT="+dir.file("ca.crt"), "GRPC_CLIENT_TLS_SAN=envoy.local"), secured.NewTLS(envoy))
	request := parseRequest(t, "d | k=v")
	// fresh makes a request on a connection of its own and returns its code, and who the server said
	// it was.
	fresh := func(as *tls.Config) (codes.Code, string) {
		t.Helper()
		var shown atomic.Value
		as = as.Clone()
		as.VerifyConnection = func(c tls.ConnectionState) error {
			shown.Store(c.PeerCertificates[0].Subject.CommonName)
			return nil
		}
		conn := must.Get(grpc.NewClient(r.address["grpc"], grpc.WithTransportCredentials(secured.NewTLS(as))))(t)
		defer conn.Close()
		_, err := (&running{conn: conn}).ask(t, request)
		name, _ := shown.Load().(string)
		return status.Code(err), name
	}

	// Requests on one connection that stays, and each on a connection of its own, by clients of the
	// old authority.
	var passed atomic.Int64
	traffic, end := context.WithCancel(t.Context())
	var going sync.WaitGroup
	defer going.Wait()
	defer end()
	for range 4 {
		going.Go(func() {
			pace := time.NewTicker(time.Millisecond) // as fast as they can, the callers would take the processors from other tests
			defer pace.Stop()
			for client := ratelimitv3.NewRateLimitServiceClient(r.conn); traffic.Err() == nil; passed.Add(1) {
				<-pace.C
				if _, err := client.ShouldRateLimit(context.WithoutCancel(traffic), request); err != nil {
					t.Errorf("on the connection that stays: %v", err)
					return
				}
			}
		})
	}
	connecting, enough := context.WithCancel(traffic)
	var connects sync.WaitGroup
	defer connects.Wait()
	defer enough()
	connects.Go(func() {
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for ; connecting.Err() == nil; passed.Add(1) {
			<-pace.C
			if code, _ := fresh(envoy); code != codes.OK {
				t.Errorf("on a new connection: %v", code)
				return
			}
		}
	})

	_, from := r.log.Await(t, 0, logtest.Has(`"certificates loaded"`))
	// want wants the same of a new connection.
	want := func(step string, as *tls.Config, code codes.Code, server string) {
		t.Helper()
		got, shown := fresh(as)
		if got != code || shown != server {
			t.Errorf("%s: got %v of %q, want %v of %q", step, got, shown, code, server)
		}
		if got == codes.OK {
			passed.Add(1)
		}
	}
	want("at first, the new authority", as(after, "envoy.local"), codes.Unavailable, "first")
	want("at first, no certificate", &tls.Config{RootCAs: both, ServerName: "localhost"}, codes.Unavailable, "first")

	// Another's key is refused, and all goes on.
	dir.turn(t, "2", files(certtest.Pair{Certificate: second.Certificate, Key: first.Key}, before.PEM))
	_, from = r.log.Await(t, from, logtest.Has(`"certificates refused"`))
	want("with another's key", envoy, codes.OK, "first")

	dir.turn(t, "3", files(second, before.PEM, after.PEM))
	_, from = r.log.Await(t, from, logtest.Has(`"certificates loaded"`))
	want("with both, the old authority", envoy, codes.OK, "second")
	want("with both, the new authority", as(after, "envoy.local"), codes.OK, "second")
	want("with both, another name", as(after, "other.local"), codes.Unavailable, "second")

	enough() // clients of the old authority will not be let in any more
	connects.Wait()
	dir.turn(t, "4", files(second, after.PEM))
	r.log.Await(t, from, logtest.Has(`"certificates loaded"`))
	want("at last, the old authority", envoy, codes.Unavailable, "second")
	want("at last, the new authority", as(after, "envoy.local"), codes.OK, "second")
	want("at last, another name", as(after, "other.local"), codes.Unavailable, "second")

	eventually(t, within, func() string {
		if n := passed.Load(); n < 100 && !t.Failed() {
			return fmt.Sprintf("there were only %d requests", n)
		}
		return ""
	})
	end()
	going.Wait()
	// No request was lost, and none counted twice.
	n := passed.Load()
	if state := r.conn.GetState().String(); state != "READY" {
		t.Errorf("the connection that stays is %s", state)
	}
	r.wantAnswer(t, "d +1 | k=v +0", fmt.Sprintf("OK | OK 1000000000/6 left %d reset", 1_000_000_000-n))
}
