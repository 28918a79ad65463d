package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// socketPath returns a path for a Unix socket, which may have no more than about 100 bytes:
// t.TempDir can be longer.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "rls.sock")
}
