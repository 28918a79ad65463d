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

// raceVariable is the environment variable that gives the programs the race detector when the tests
// do not have it. The tests cost a third less CPU then.
const raceVariable = "RACE_DETECTOR"

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
	race := raceEnabled || os.Getenv(raceVariable) != ""
	for variable, folder := range map[string]string{sidecarVariable: "cmd/sidecar", ratelimitVariable: "cmd/ratelimit"} {
		if os.Getenv(variable) != "" {
			continue
		}
		binary, err := parts.Program(context.Background(), root, folder, race)
		if err != nil {
			return 0, err
		}
		if err := os.Setenv(variable, binary); err != nil {
			return 0, err
		}
	}
	return m.Run(), nil
}

// once skips a test with -short: `make e2e` runs the tests again so, over another server of Envoy's
// calls, which changes nothing for this test.
func once(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: another server of Envoy's calls changes nothing")
	}
}
