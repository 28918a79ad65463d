package lab_test

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/top", "internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "pkg/store/memstore"},
		Never: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/spf13", "os", "net"},
	})
}
