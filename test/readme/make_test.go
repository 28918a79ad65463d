package readme

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnInterruptEndsAllCommandsOfATarget interrupts the shell of a target that runs several
// commands. The command that runs then ends by itself, as `go test` does.
func TestAnInterruptEndsAllCommandsOfATarget(t *testing.T) {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt) // otherwise the shell could inherit that interrupts are ignored
	defer signal.Stop(interrupts)
	target := filepath.Join(t.TempDir(), "target.mk")
	recipe := "interrupted:\n\t@$(RUN); run kill -INT $$$$; run echo and on; ended\n"
	if err := os.WriteFile(target, []byte(recipe), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "make", "-f", "Makefile", "-f", target, "interrupted")
	command.Dir = repository
	out, err := command.CombinedOutput()
	if failed := (*exec.ExitError)(nil); !errors.As(err, &failed) || strings.Contains(string(out), "and on") {
		t.Errorf("make: got %v and this output, want a failure and no second command\n%s", err, out)
	}
}
