package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// The environment variables that name the binaries under test.
const (
	sidecarVariable   = "SIDECAR"
	ratelimitVariable = "RATELIMIT"
)

// TestMain builds the programs once for all tests, except programs that the environment names.
func TestMain(m *testing.M) {
	code, err := runWithPrograms(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runWithPrograms runs the tests with $SIDECAR and $RATELIMIT set.
func runWithPrograms(m *testing.M) (int, error) {
	root, err := parts.Root()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "weir-e2e-")
	if err != nil {
		return 0, fmt.Errorf("building what is tested: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for variable, build := range map[string]func(ctx context.Context, root, dir string, race bool) (string, error){
		sidecarVariable: parts.BuildSidecar, ratelimitVariable: parts.BuildRatelimit,
	} {
		if os.Getenv(variable) != "" {
			continue
		}
		binary, err := build(context.Background(), root, dir, raceEnabled)
		if err != nil {
			return 0, err
		}
		if err := os.Setenv(variable, binary); err != nil {
			return 0, err
		}
	}
	return m.Run(), nil
}
