package admin

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/internal/wire"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// serveAdmin serves the admin address on a port of loopback.
func (f *fixture) serveAdmin(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.admin.Serve(l) }()
	t.Cleanup(func() {
		f.admin.Close()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// adminClient returns a client of the admin service at an address.
func adminClient(t *testing.T, address string, secure credentials.TransportCredentials) (*grpc.ClientConn, adminv1.AdminServiceClient) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(secure))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, adminv1.NewAdminServiceClient(conn)
}

func fetch(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestThePageAndGRPCShareTheAdminAddress(t *testing.T) {
	f := start(t, watchedRules, nil)
	address := f.serveAdmin(t)
	_, client := adminClient(t, address, insecure.NewCredentials())
	for range 3 {
		if _, err := client.ListRules(t.Context(), new(adminv1.ListRulesRequest)); err != nil {
			t.Fatal(err)
		}
		if code, body := fetch(t, http.DefaultClient, "http://"+address+"/"); code != http.StatusOK || !strings.Contains(body, "<title>Weir") {
			t.Errorf("the page: got %d %s", code, body)
		}
	}
}

// Browsers and curl offer HTTP/2 too, which the page does not speak.
func TestThePageAndGRPCShareTheAdminAddressWithTLS(t *testing.T) {
	r := newSecured(t)
	f := start(t, watchedRules, func(o *Options) { o.Access.TLS = r.server })
	address := f.serveAdmin(t)
	pair := r.ca.Issue(t, "operator").TLS(t)
	_, client := adminClient(t, address, credentials.NewTLS(r.clientConfig(pair)))
	if _, err := client.ListRules(t.Context(), new(adminv1.ListRulesRequest)); err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: r.clientConfig(pair), ForceAttemptHTTP2: true}}
	defer browser.CloseIdleConnections()
	if code, body := fetch(t, browser, "https://"+address+"/"); code != http.StatusOK || !strings.Contains(body, "<title>Weir") {
		t.Errorf("the page: got %d %s", code, body)
	}
	nobody := &http.Client{Transport: &http.Transport{TLSClientConfig: r.clientConfig()}}
	if answer, err := nobody.Get("https://" + address + "/"); err == nil {
		_ = answer.Body.Close()
		t.Errorf("a client without a certificate: got %d, want an error", answer.StatusCode)
	}
}

// The page and gRPC share the bound: each would be a way around the other's.
func TestAdminCallsBoundGuesses(t *testing.T) {
	const token = "a-token-of-24-characters"
	f := start(t, watchedRules, func(o *Options) { o.Access.Token = func() string { return token } })
	address := f.serveAdmin(t)
	_, client := adminClient(t, address, insecure.NewCredentials())
	list := func(token string) error {
		_, err := client.ListRules(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token), new(adminv1.ListRulesRequest))
		return err
	}
	var compared int
	err := list("wrong")
	for ; status.Code(err) == codes.Unauthenticated && compared < 100; compared++ {
		err = list(fmt.Sprint("wrong", compared))
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "too many wrong tokens came from this address: try again in 6 s") {
		t.Fatalf("after %d guesses: got %v", compared, err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/nothing", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer wrong too")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the page: got %d, want 429", answer.StatusCode)
	}
}

// secured is an authority, and TLS of a server that asks clients for its certificates.
type secured struct {
	ca     *certtest.Authority
	server *tls.Config
}

func newSecured(t *testing.T) *secured {
	t.Helper()
	ca := certtest.New(t, "ca")
	return &secured{ca, &tls.Config{
		Certificates: []tls.Certificate{ca.Issue(t, "localhost").TLS(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool,
	}}
}

// clientConfig trusts the server of the fixture.
func (r *secured) clientConfig(pairs ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: r.ca.Pool, ServerName: "localhost", Certificates: pairs}
}

func TestAdminCallsNeedTheToken(t *testing.T) {
	const token = "a-token-of-24-characters"
	f := start(t, watchedRules, func(o *Options) { o.Access.Token = func() string { return token } })
	address := f.serveAdmin(t)
	conn, client := adminClient(t, address, insecure.NewCredentials())
	calls := map[string]func(context.Context) error{
		"ListRules": func(ctx context.Context) error {
			_, err := client.ListRules(ctx, new(adminv1.ListRulesRequest))
			return err
		},
		"Watch": func(ctx context.Context) error {
			stream, err := client.Watch(ctx, new(adminv1.WatchRequest))
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"reflection": func(ctx context.Context) error {
			stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			if err == nil {
				_ = stream.CloseSend()
				_, err = stream.Recv()
			}
			return err
		},
	}
	for name, call := range calls {
		for _, header := range []string{"", "Bearer ", "Bearer wrong", token, "Basic " + token} {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", header)
			if err := call(ctx); status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s with %q: got %v, want Unauthenticated", name, header, err)
			}
		}
		ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "authorization", "bearer "+token))
		if name == "Watch" {
			cancel() // the call may wait for requests
		}
		if err := call(ctx); status.Code(err) == codes.Unauthenticated || name == "ListRules" && err != nil {
			t.Errorf("%s with the token: got %v", name, err)
		}
		cancel()
	}
	if _, err := healthgrpc.NewHealthClient(conn).Check(t.Context(), new(healthgrpc.HealthCheckRequest)); err != nil {
		t.Errorf("health without the token: %v", err)
	}
	if log := f.logs.Take(); !strings.Contains(log, "an admin call without the right token was refused") || strings.Contains(log, token) {
		t.Errorf("log: %s", log)
	}
	if code, _ := fetch(t, http.DefaultClient, "http://"+address+"/nothing"); code != http.StatusUnauthorized {
		t.Errorf("a page without the token: got %d, want 401", code)
	}
}

func TestAStopEndsBothSidesOfTheAdminAddress(t *testing.T) {
	f := start(t, watchedRules, nil)
	address := f.serveAdmin(t)
	_, client := adminClient(t, address, insecure.NewCredentials())
	if _, err := client.ListRules(t.Context(), new(adminv1.ListRulesRequest)); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Dial("tcp", address) // neither side has it
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if code, _ := fetch(t, http.DefaultClient, "http://"+address+"/"); code != http.StatusOK {
		t.Errorf("got %d", code)
	}
	f.admin.GracefulStop()
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the silent connection: got %v, want its end", err)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Error("the address listens after GracefulStop")
	}
}

func TestAPageThatIsNotThereIsNotFound(t *testing.T) {
	f := start(t, "", nil)
	address := f.serveAdmin(t)
	for _, path := range []string{"/nothing", "/assets/", "/assets/..%2fpage.go", "/assets/page.go"} {
		if code, body := fetch(t, http.DefaultClient, fmt.Sprintf("http://%s%s", address, path)); code != http.StatusNotFound && code != http.StatusBadRequest {
			t.Errorf("%s: got %d %s, want 404", path, code, body)
		}
	}
}

// New connections take the place of silent ones. A page shows a state each second, so it is not
// silent, and neither is a client that watches.
func TestAnOpenPageAndAWatchKeepTheirPlacesInAFloodOfConnections(t *testing.T) {
	f := start(t, watchedRules, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bound := wire.NewConnections(wire.ConnectionOptions{Server: "admin", Max: 4, Logger: f.logger})
	go func() { _ = f.admin.Serve(bound.Listen(l)) }()
	_, client := adminClient(t, l.Addr().String(), insecure.NewCredentials())
	stream := watching(t.Context(), t, client, new(adminv1.WatchRequest))
	answer, err := http.Get("http://" + l.Addr().String() + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	states := func(n int) {
		t.Helper()
		for n > 0 {
			if !lines.Scan() {
				t.Fatalf("the page has lost its connection: %v", lines.Err())
			}
			if lines.Text() == "event: state" {
				n--
			}
		}
	}
	states(3) // more than a second: a first request that takes so long gives way
	for range 20 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	states(2)
	f.ask(t, descriptor("path", "/cart"))
	texts(t, stream, 1)
	if s := bound.Stats(); s.Replaced == 0 {
		t.Errorf("the flood reached no bound: %+v", s)
	}
}

// A connection that waits for the rest of a handshake is no call in flight. gRPC itself waits for
// it, up to the timeout of the handshake.
func TestCloseDoesNotWaitForAHandshakeOfTheAdminAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, watchedRules, nil)
		l := bufconn.Listen(1 << 10)
		ended := make(chan error, 1)
		go func() { ended <- f.admin.Serve(l) }()
		conn, err := l.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "PRI ")
		synctest.Wait()
		begun := time.Now()
		f.admin.Close()
		if took := time.Since(begun); took != 0 {
			t.Errorf("Close took %v, want no wait", took)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The login form and health answer strangers. Connections of strangers give way to operators.
func TestAnsweredStrangersKeepNoOperatorOut(t *testing.T) {
	const token = "a-token-of-24-characters"
	f := start(t, watchedRules, func(o *Options) { o.Access.Token = func() string { return token } })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	bound := wire.NewConnections(wire.ConnectionOptions{Server: "admin", Max: 2, Logger: f.logger})
	go func() { _ = f.admin.Serve(bound.Listen(l)) }()
	for range 3 {
		browser := &http.Client{Transport: new(http.Transport)}
		defer browser.CloseIdleConnections()
		if code, _ := fetch(t, browser, "http://"+address+"/login"); code != http.StatusOK {
			t.Errorf("the login form: got %d", code)
		}
		conn, _ := adminClient(t, address, insecure.NewCredentials())
		if _, err := healthgrpc.NewHealthClient(conn).Check(t.Context(), new(healthgrpc.HealthCheckRequest)); err != nil {
			t.Errorf("health: %v", err)
		}
	}
	_, operator := adminClient(t, address, insecure.NewCredentials())
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	if _, err := operator.ListRules(ctx, new(adminv1.ListRulesRequest)); err != nil {
		t.Errorf("an operator: %v", err)
	}
}
