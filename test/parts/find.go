package parts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Required reports whether the environment variable WEIR_REQUIRE, a list of names, holds that name.
// A test that needs the part then fails without it; else the test skips.
func Required(part string) bool {
	for name := range strings.FieldsFuncSeq(os.Getenv("WEIR_REQUIRE"), func(r rune) bool { return r == ',' || r == ' ' }) {
		if name == part {
			return true
		}
	}
	return false
}

// NeedEnvoy is FindEnvoy for a test. Without an Envoy it skips the test, or fails it where
// WEIR_REQUIRE says that one must be there.
func NeedEnvoy(tb testing.TB, root string) string {
	tb.Helper()
	return need(tb, "envoy", root, FindEnvoy)
}

// NeedRedis is FindRedis for a test. Without a Redis it skips the test, or fails it where
// WEIR_REQUIRE says that one must be there.
func NeedRedis(tb testing.TB, root string) string {
	tb.Helper()
	return need(tb, "redis", root, FindRedis)
}

func need(tb testing.TB, part, root string, find func(ctx context.Context, root string) (string, error)) string {
	tb.Helper()
	path, err := find(tb.Context(), root) // no deadline: the first call may have to fetch it
	if err != nil && Required(part) {
		tb.Fatal(err)
	}
	if err != nil {
		tb.Skip(err)
	}
	return path
}

// find returns the path that a script in the folder scripts of the repository at root prints. An
// error wraps missing, has one line, and ends with the script's reason. The script writes that line
// on standard error, with the text of missing before the reason.
func find(ctx context.Context, root, name string, missing error) (string, error) {
	script := exec.CommandContext(ctx, filepath.Join(root, "scripts", name))
	var stderr strings.Builder
	script.Stderr = &stderr
	out, err := script.Output()
	if err != nil {
		why := strings.TrimPrefix(strings.TrimSpace(stderr.String()), missing.Error()+": ")
		if why == "" {
			why = err.Error()
		}
		return "", fmt.Errorf("%w: %s", missing, why)
	}
	return strings.TrimSpace(string(out)), nil
}
