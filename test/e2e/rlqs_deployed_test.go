package e2e

import (
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
	"github.com/weirproxy/weir/test/parts"
)

func TestDeployedQuotasGiveTheBusyEnvoyMore(t *testing.T) {
	t.Parallel()
	once(t)
	backend := parts.BackendFor(t)
	s := startSidecarOn(t, deployed(t, "rlqs", "rules"))
	_, port, err := net.SplitHostPort(s.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	start := func(name string) *envoy {
		return startEnvoyOn(t, onFreePorts(t, backend.Address(), "rlqs/envoy.yaml", "port_value: 8081", "port_value: "+port, "value: edge-1", "value: "+name))
	}
	const variable = "%ENVIRONMENT(HOME)%" // Envoy 1.40 does not fill in variables here, and docs/rlqs.md says so
	busy, quiet := start("edge-1"), start(strconv.Quote(variable))
	if a := busy.get(t, "/", "x-tenant: acme"); a.code != http.StatusTooManyRequests {
		t.Errorf("the first request of a tenant: got %d, want 429", a.code)
	}
	if a := busy.get(t, "/search"); a.code != http.StatusOK {
		t.Errorf("the first search: got %d, want 200", a.code)
	}
	l := &quotaLoad{begun: time.Now(), by: make(map[string]int)}
	const duration = 22 * time.Second
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.run(busy.url, 6, 50*time.Millisecond, duration)
	}()
	l.run(quiet.url, 1, 300*time.Millisecond, duration)
	<-done
	if len(l.wrong) > 0 {
		t.Fatalf("%d requests failed: %s", len(l.wrong), l.wrong[0])
	}
	if n := over(l.all, 50, 50); n > 0 {
		t.Errorf("an interval has %.1f requests more than the limit", n)
	}
	conn, err := grpc.NewClient(s.Admin, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	seen, err := adminv1.NewAdminServiceClient(conn).ListQuotas(t.Context(), &adminv1.ListQuotasRequest{Entries: []*adminv1.Entry{{Key: "tenant"}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen.GetQuotas()) != 1 || len(seen.GetQuotas()[0].GetShares()) != 2 || seen.GetStreams() != 2 || seen.GetBuckets() != 3 {
		t.Fatalf("got %v", seen)
	}
	hot, cold := seen.GetQuotas()[0].GetShares()[0], seen.GetQuotas()[0].GetShares()[1]
	if hot.GetName() != "edge-1" || cold.GetName() != variable {
		t.Errorf("got the names %q and %q, want edge-1 and %s", hot.GetName(), cold.GetName(), variable)
	}
	if hot.GetRate() < 3*cold.GetRate() || hot.GetState() != adminv1.QuotaState_QUOTA_STATE_BUCKET || hot.GetDemand() <= cold.GetDemand() {
		t.Errorf("got %v for the busy Envoy, and %v for the quiet one", hot, cold)
	}
}
