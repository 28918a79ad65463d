package main

import (
	"context"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// inFlight begins a request of which the server has the head and not yet the message.
func inFlight(t *testing.T, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	// A connection's frames are read in order: once this is answered the head has arrived.
	if got := health(t, conn); got != healthgrpc.HealthCheckResponse_SERVING {
		t.Fatalf("health: got %v, want SERVING", got)
	}
	return stream
}

// health returns what health says of the service.
func health(t *testing.T, conn *grpc.ClientConn) healthgrpc.HealthCheckResponse_ServingStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	answer, err := healthgrpc.NewHealthClient(conn).Check(ctx, &healthgrpc.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus()
}

func TestSIGTERMFinishesWhatIsInFlight(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, rulesOf("5")), "--drain-timeout=30s")
	conn := r.dial(t, r.address["grpc tcp"])
	stream := inFlight(t, conn)

	// A sidecar that drains goes on while requests come, however long this machine needs for the next
	// steps.
	asking, enough := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	callers.Go(func() {
		for client := ratelimitv3.NewRateLimitServiceClient(conn); asking.Err() == nil; {
			if _, err := client.ShouldRateLimit(t.Context(), requestFor("traffic")); err != nil {
				t.Errorf("a request that keeps the sidecar from its end: %v", err)
				return
			}
		}
	})
	defer callers.Wait()
	defer enough()
	raise(t, syscall.SIGTERM)
	if got := r.await(t, "draining").Cause; got != "signal: terminated" {
		t.Errorf("cause of the drain: got %q", got)
	}
	// While it drains it says so, and still answers.
	if code, _ := r.get(t, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz while draining: got %d, want 503", code)
	}
	if got := health(t, conn); got != healthgrpc.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health while draining: got %v, want NOT_SERVING", got)
	}
	if got := limitFor(t, conn); got != 5 {
		t.Errorf("a request while draining: got limit %d, want 5", got)
	}
	enough()
	callers.Wait()
	// Once no request has come for a second it takes no new connection, and waits for the one in
	// flight.
	deadline := time.Now().Add(within)
	for {
		c, err := net.Dial("tcp", r.address["grpc tcp"])
		if err != nil {
			break
		}
		_ = c.Close()
		if time.Now().After(deadline) {
			t.Fatal("the sidecar still takes connections")
		}
	}
	select {
	case err := <-r.ended:
		t.Fatalf("the sidecar ended (%v) with a request in flight", err)
	default:
	}
	answer := new(ratelimitv3.RateLimitResponse)
	if err := stream.SendMsg(requestFor("late")); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(answer); err != nil || answer.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("the request in flight: got %v, %v; want OK", answer, err)
	}
	r.await(t, "stopped")
	r.awaitEnd(t)
}

func TestTheDrainTimeoutBreaksWhatIsInFlight(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, rulesOf("5")), "--drain-timeout=100ms")
	conn := r.dial(t, r.address["grpc tcp"])
	stream := inFlight(t, conn)
	raise(t, syscall.SIGTERM)
	if got := r.await(t, "requests in flight were canceled").Cause; got != "the drain timeout is over" {
		t.Errorf("cause: got %q", got)
	}
	if err := stream.RecvMsg(new(ratelimitv3.RateLimitResponse)); status.Code(err) != codes.Unavailable {
		t.Errorf("the request in flight: got %v, want Unavailable", err)
	}
	r.awaitEnd(t)
}

func TestSIGHUPWithABadFileKeepsTheOldRulesAndSaysSo(t *testing.T) {
	file := rulesFile(t, rulesOf("5"))
	r := start(t, "--rules", file)
	conn := r.dial(t, r.address["grpc tcp"])
	raise(t, syscall.SIGHUP)
	r.await(t, "rules loaded") // only a signal loads rules that did not change

	writeRules(t, file, rulesOf("many"))
	raise(t, syscall.SIGHUP)
	refused := r.await(t, "rules refused")
	if len(refused.Errors) != 1 || !strings.HasPrefix(refused.Errors[0], file+":4: descriptors[0].rate_limit.requests_per_unit: ") {
		t.Errorf("reasons: got %q", refused.Errors)
	}
	if got := limitFor(t, conn); got != 5 {
		t.Errorf("limit in force: got %d, want that of before", got)
	}
	if _, page := r.get(t, "/rules"); !strings.Contains(page, file+":4: descriptors[0]") || !strings.Contains(page, `"requests_per_unit": 5`) {
		t.Errorf("/rules shows neither the reason nor the rules of before:\n%s", page)
	}
	if _, page := r.get(t, "/metrics"); !strings.Contains(page, "\nweir_config_last_reload_successful 0\n") ||
		strings.Contains(page, "\nweir_config_reloads_total{result=\"failure\"} 0\n") {
		t.Error("/metrics does not show the failed reload")
	}

	writeRules(t, file, rulesOf("7"))
	raise(t, syscall.SIGHUP)
	r.await(t, "rules loaded")
	if got := limitFor(t, conn); got != 7 {
		t.Errorf("limit in force: got %d, want 7", got)
	}
	if _, page := r.get(t, "/metrics"); !strings.Contains(page, "\nweir_config_last_reload_successful 1\n") {
		t.Error("/metrics does not show the reload")
	}
}

func TestAChangedFileIsReloaded(t *testing.T) {
	file := rulesFile(t, rulesOf("5"))
	r := start(t, "--rules", filepath.Dir(file))
	conn := r.dial(t, r.address["grpc tcp"])
	if got := limitFor(t, conn); got != 5 {
		t.Fatalf("limit in force: got %d, want 5", got)
	}
	writeRules(t, file, rulesOf("6"))
	r.await(t, "rules loaded")
	if got := limitFor(t, conn); got != 6 {
		t.Errorf("limit in force: got %d, want 6", got)
	}
}

func TestInlineRulesOfASettingsFileServe(t *testing.T) {
	document := "  " + strings.ReplaceAll(strings.TrimSuffix(rulesOf("9"), "\n"), "\n", "\n  ")
	file := settingsFile(t, "weir.yaml", "log-level: debug\ndomains:\n-"+document[1:]+"\n")
	r := start(t, "--config", file)
	if got := limitFor(t, r.dial(t, r.address["grpc tcp"])); got != 9 {
		t.Errorf("limit in force: got %d, want 9", got)
	}
	if _, page := r.get(t, "/rules"); !strings.Contains(page, file) {
		t.Errorf("/rules does not name the settings file:\n%s", page)
	}
}

func TestAStaleUnixSocketIsReplaced(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir-") //nolint:usetesting // a socket's path may have about 100 bytes: t.TempDir can be longer
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "rls.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false) // as after a crash
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}

	r := start(t, "--rules", rulesFile(t, rulesOf("5")), "--grpc-address=", "--grpc-socket", path, "--grpc-socket-mode=0600")
	if got := r.address["grpc unix"]; got != path {
		t.Errorf("address in the log: got %q, want %q", got, path)
	}
	if got, on := r.address["grpc tcp"]; on {
		t.Errorf("gRPC listens on %s too", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != fs.FileMode(0o600) {
		t.Errorf("the socket: got %v, %v; want mode 0600", info, err)
	}
	if got := limitFor(t, r.dial(t, "unix:"+path)); got != 5 {
		t.Errorf("limit in force: got %d, want 5", got)
	}

	// A second one does not take it away from the first.
	err = run(t.Context(), []string{"--rules", rulesFile(t, rulesOf("5")), "--grpc-address=", "--http-address=", "--admin-address=", "--grpc-socket", path},
		strings.NewReader(""), io.Discard, io.Discard)
	if err == nil || !strings.HasPrefix(err.Error(), "grpc-socket: listen on unix socket "+path) {
		t.Errorf("a second sidecar on the same socket: got %v", err)
	}
	raise(t, syscall.SIGTERM)
	r.awaitEnd(t)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket after the end: got %v, want it gone", err)
	}
}

func TestEveryAddressThatIsTakenIsNamed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	address := taken.Addr().String()
	err = run(t.Context(), []string{"--rules", rulesFile(t, rulesOf("5")), "--grpc-address", address, "--http-address", address, "--admin-address=127.0.0.1:0"},
		strings.NewReader(""), io.Discard, io.Discard)
	if err == nil || strings.Count(err.Error(), "\n") != 1 ||
		!strings.HasPrefix(err.Error(), "grpc-address: ") || !strings.Contains(err.Error(), "\nhttp-address: ") {
		t.Errorf("got %v; want both addresses", err)
	}
}

func TestMatchAndResetAskARunningSidecar(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, rulesOf("5")))
	limitFor(t, r.dial(t, r.address["grpc tcp"])) // one of user=x
	sidecar := func(args ...string) string {
		t.Helper()
		var out strings.Builder
		if err := run(t.Context(), args, strings.NewReader(""), &out, io.Discard); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out.String()
	}
	server := "--server=" + r.address["admin tcp"]
	if got, want := sidecar("match", server, "--hits=0", "test", "user=x"), "allowed, 4 left after that"; !strings.Contains(got, want) {
		t.Errorf("match after one request: got\n%s\nwant %q", got, want)
	}
	if got, want := sidecar("match", server, "--hits=1000", "test", "user=x"), "denied, 0 left, the same hits never pass, reset after "; !strings.Contains(got, want) {
		t.Errorf("match of hits that never fit: got\n%s\nwant %q", got, want)
	}
	if got, want := sidecar("match", server, "test", "user=x", "other=y"), "denied hits count too\nkey     4:test|4:user=1:x#fixed_window/365d\n"; !strings.Contains(got, want) ||
		!strings.Contains(got, "\n\nentry   other=y: ") {
		t.Errorf("match of two descriptors: got\n%s\nwant %q", got, want)
	}
	if got, want := sidecar("reset", server, "test", "user=x"), "key     4:test|4:user=1:x#fixed_window/365d\nforgot  1 key that had been used\n"; got != want {
		t.Errorf("reset: got %q, want %q", got, want)
	}
	if got, want := sidecar("match", server, "--hits=0", "--output=json", "test", "user=x"), `"remaining": 5`; !strings.Contains(got, want) {
		t.Errorf("match after the reset: got\n%s\nwant %s", got, want)
	}
	if got, want := sidecar("reset", server, "test", "other=y"), "key     none: no limit applies\n"; !strings.HasPrefix(got, want) {
		t.Errorf("reset without a rule: got %q, want %q", got, want)
	}
	err := run(t.Context(), []string{"reset", server, "", "user=x"}, strings.NewReader(""), io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "InvalidArgument") {
		t.Errorf("reset without a domain: got %v, want InvalidArgument", err)
	}
}
