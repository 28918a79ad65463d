package deploy

import (
	"os/exec"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// TestPromtoolAcceptsTheRulesAndTheirTests runs the promtool of the PATH. An older promtool refuses
// words that the engine of TestAlertsFireForASickWeirAndNotForAHealthyOne knows.
func TestPromtoolAcceptsTheRulesAndTheirTests(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil && parts.Required("promtool") {
		t.Fatal(err)
	}
	if err != nil {
		t.Skipf("promtool, a program of Prometheus, is missing: %v", err)
	}
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", "prometheus/weir.rules.yaml"},
		{"test", "rules", "prometheus/weir.rules_test.yaml"},
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
