package app

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{"internal/wire/certificates", "internal/regular", "internal/wire", "internal/durations", "internal/headers", "internal/admin", "internal/admin/grants", "internal/printable", "internal/wire/web", "internal/lane", "pkg/quota", "internal/wire/laneserver", "internal/lockfile", "internal/loglimit", "internal/metrics", "internal/admin/page", "internal/rawio", "internal/lab/records", "internal/redis", "internal/rules/reload", "internal/admin/render", "internal/redis/resp", "internal/snapshots", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "internal/statistics", "internal/top", "internal/tracing", "internal/version", "internal/admin/watch", "internal/rules/xds", "pkg/...", "proto/..."},
		Third: []string{
			"github.com/prometheus/client_golang/prometheus", "github.com/KimMachineGun/automemlimit/memlimit",
			"golang.org/x/sync/errgroup", "golang.org/x/sys/unix", "google.golang.org/grpc", "google.golang.org/protobuf/types/known/timestamppb",
		},
		Never: []string{"testing", "github.com/spf13"},
	})
}
