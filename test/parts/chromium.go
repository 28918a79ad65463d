package parts

import (
	"context"
	"errors"
	"os"
	"testing"
)

// ErrNoChromium says that there is no Chromium on this machine.
var ErrNoChromium = errors.New("no Chromium")

// FindChromium returns the path of a Chromium or Chrome: $CHROMIUM, else one on the PATH, else a
// copy in .cache that the first call fetches. The script scripts/chromium.sh of the repository at
// root searches. An error wraps ErrNoChromium and names the missing part in one line.
func FindChromium(ctx context.Context, root string) (string, error) {
	_ = os.Getenv("CHROMIUM") // for the script; tells `go test` that a cached result depends on the variable
	return find(ctx, root, "chromium.sh", ErrNoChromium)
}

// NeedChromium is FindChromium for a test. Without a Chromium it skips the test, or fails it where
// WEIR_REQUIRE says that one must be there.
func NeedChromium(tb testing.TB, root string) string {
	tb.Helper()
	return need(tb, "chromium", root, FindChromium)
}
