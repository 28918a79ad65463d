package readme

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestContributingNamesTheVariablesOfTests looks for the variables that tests read from the
// environment.
func TestContributingNamesTheVariablesOfTests(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "git", "grep", "-hE", `Getenv\("|LINEAR_[A-Z]+"`, "--", "*_test.go", "internal/testing", "test")
	cmd.Dir = "../.."
	lines, err := cmd.Output()
	if err != nil {
		t.Fatalf("look for variables: %v", err)
	}
	text, read := readFile(t, "CONTRIBUTING.md"), 0
	for _, m := range regexp.MustCompile(`"([A-Z]+(?:_[A-Z]+)*)"`).FindAllStringSubmatch(string(lines), -1) {
		if read++; m[1] != "PATH" && !strings.Contains(text, "`"+m[1]+"`") {
			t.Errorf("CONTRIBUTING.md does not name %s, which a test reads", m[1])
		}
	}
	if read < 20 {
		t.Errorf("got %d variables, want the many that tests read", read)
	}
}
