package serving

import (
	"testing"

	"github.com/weirproxy/weir/internal/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{"internal/certificates", "internal/connections", "internal/durations", "internal/grants", "internal/inflight", "internal/lane", "internal/laneserver", "internal/lockfile", "internal/loglimit", "internal/metrics", "internal/page", "internal/rawio", "internal/records", "internal/redisconn", "internal/reload", "internal/render", "internal/resp", "internal/snapshots", "internal/spelling", "internal/split", "internal/statistics", "internal/top", "internal/tracing", "internal/version", "internal/watch", "internal/xds", "pkg/...", "proto/..."},
		Third: []string{
			"github.com/prometheus/client_golang/prometheus", "github.com/KimMachineGun/automemlimit/memlimit",
			"golang.org/x/sync/errgroup", "golang.org/x/sys/unix", "google.golang.org/grpc",
		},
		Never: []string{"testing", "github.com/spf13"},
	})
}
