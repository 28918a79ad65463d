package grants

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{
			"internal/metrics", "internal/top", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "pkg/store/memstore",
			"internal/lockfile", "internal/regular", "internal/loglimit",
		},
		Never: []string{"google.golang.org/grpc", "github.com/redis", "github.com/spf13", "go.opentelemetry.io"},
	})
}
