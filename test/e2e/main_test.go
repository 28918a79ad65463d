package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// sidecarVariable is the environment variable that names the sidecar binary under test.
const sidecarVariable = "SIDECAR"

// TestMain builds the sidecar once for all tests, unless SIDECAR names one.
func TestMain(m *testing.M) {
	code, err := runWithSidecar(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runWithSidecar runs the tests with $SIDECAR set.
func runWithSidecar(m *testing.M) (int, error) {
	if os.Getenv(sidecarVariable) != "" {
		return m.Run(), nil
	}
	root, err := parts.Root()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "weir-e2e-")
	if err != nil {
		return 0, fmt.Errorf("building the sidecar: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary, err := parts.BuildSidecar(context.Background(), root, dir, raceEnabled)
	if err != nil {
		return 0, err
	}
	if err := os.Setenv(sidecarVariable, binary); err != nil {
		return 0, err
	}
	return m.Run(), nil
}
