package page

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// A stream without a body would keep its place for ever, because no write of it fails.
func TestHeadOpensNoStream(t *testing.T) {
	f := newPage(t, func(o *Options) { o.Service = new(counters) })
	f.end() // a stream that opens ends at once
	for _, path := range []string{"/events", "/tail"} {
		if got := f.ask("HEAD", path, ""); got.StatusCode != http.StatusMethodNotAllowed || got.Header.Get("Allow") != "GET" {
			t.Errorf("HEAD %s: got %d, %v", path, got.StatusCode, got.Header)
		}
	}
}

func TestAPanicOfWatchEndsTheTailAlone(t *testing.T) {
	f := newPage(t, func(o *Options) {
		o.Service = &service{watch: func(*adminv1.WatchRequest, grpc.ServerStreamingServer[adminv1.WatchResponse]) error {
			panic("broken") //nolint:forbidigo // as a mistake would
		}}
	})
	if got := f.ask("GET", "/tail", ""); got.StatusCode != http.StatusInternalServerError {
		t.Errorf("got %d, want 500", got.StatusCode)
	}
	if !strings.Contains(f.log.String(), "panic=broken") {
		t.Errorf("log: %s", f.log)
	}
}
