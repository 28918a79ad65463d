package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestTheAdminServiceAnswers(t *testing.T) {
	t.Parallel()
	r := start(t, rules("d", "k", 5))
	if host, _, err := net.SplitHostPort(r.address["admin"]); err != nil || host != "127.0.0.1" {
		t.Fatalf("admin service: got address %q, want one of loopback", r.address["admin"])
	}
	conn := must.Get(grpc.NewClient(r.address["admin"], grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer func() { _ = conn.Close() }()
	r.wantAnswer(t, "d | k=v", "OK | OK 5/3 left 4 reset")
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	answer := must.Get(adminv1.NewAdminServiceClient(conn).Explain(ctx, &adminv1.ExplainRequest{
		Domain: "d", Descriptors: []*adminv1.Descriptor{{Entries: []*adminv1.Entry{{Key: "k", Value: "v"}}}},
	}))(t)
	limits := answer.GetDescriptors()[0].GetLimits()
	if len(limits) != 1 || limits[0].GetRemaining() != 3 {
		t.Errorf("got limits %v, want one with 3 left after another hit", limits)
	}
}

func TestTheAdminAddressHasAPageAndNeedsATokenForOthers(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	must.Do(t, os.WriteFile(token, []byte("a-token-of-24-characters"), 0o600))
	r := start(t, rules("d", "k", 5), "WEIR_ADMIN_TOKEN_FILE="+token)
	for header, want := range map[string]int{"": http.StatusUnauthorized, "Bearer a-token-of-24-characters": http.StatusOK} {
		request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.address["admin"]+"/", nil))(t)
		request.Header.Set("Authorization", header)
		answer := must.Get(http.DefaultClient.Do(request))(t)
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("the page with %q: got %d, want %d", header, answer.StatusCode, want)
		}
	}
	root := t.TempDir()
	lay(t, root, map[string]string{"config/rules.yaml": rules("d", "k", 5)})
	open := launch(append(anyPort(), "USE_STATSD=false", "RUNTIME_ROOT="+root, "WEIR_ADMIN_ADDRESS=0.0.0.0:0"))
	defer open.stop()
	if err := <-open.ended; err == nil || !strings.HasPrefix(err.Error(), "WEIR_ADMIN_ADDRESS: ") || !strings.Contains(err.Error(), "WEIR_ADMIN_TOKEN_FILE") {
		t.Errorf("an open address: got %v, want an error that names both variables", err)
	}
}

// Two pods of one network namespace, or a neighbor with that port, must not keep the service from
// starting: the original would start.
func TestATakenAdminAddressEndsTheProcessOnlyWhenItIsSet(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:8082")
	if err == nil {
		defer func() { _ = taken.Close() }()
	} // else another process has the port, which is as good
	usual := slices.DeleteFunc(anyPort(), func(pair string) bool { return strings.HasPrefix(pair, "WEIR_ADMIN_ADDRESS=") })
	root := t.TempDir()
	lay(t, root, map[string]string{"config/rules.yaml": rules("d", "k", 5)})
	usual = append(usual, "USE_STATSD=false", "RUNTIME_ROOT="+root)

	r := startAs(t, usual, insecure.NewCredentials())
	r.wantAnswer(t, "d | k=v", "OK | OK 5/3 left 4 reset")
	line, _ := r.log.Await(t, 0, logtest.Has(`"@message":"an endpoint is off"`))
	if !strings.Contains(line, `"level":"warning"`) || !strings.Contains(line, "WEIR_ADMIN_ADDRESS") || r.address["admin"] != "" {
		t.Errorf("got %s, want a warning with the variable, and no admin service", line)
	}

	set := launch(append(usual, "WEIR_ADMIN_ADDRESS=127.0.0.1:8082"))
	defer set.stop()
	if err := <-set.ended; err == nil || !strings.HasPrefix(err.Error(), "WEIR_ADMIN_ADDRESS: ") {
		t.Errorf("with the address set: got %v, want an error that begins with the variable", err)
	}
}
