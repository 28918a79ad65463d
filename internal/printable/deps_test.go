package printable

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/spelling", "pkg/algorithms", "pkg/descriptors"}})
}
