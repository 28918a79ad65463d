package hostile

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// sidecarVariable is the environment variable that names the binary under test.
const sidecarVariable = "SIDECAR"

// TestMain builds the program once, without the race detector, which multiplies memory. With
// -attack the binary only attacks: the suite runs each attack in another process, because an attack
// leaves no time for an honest client beside.
func TestMain(m *testing.M) {
	name := flag.String("attack", "", "attack of the tables to run alone")
	on := flag.String("on", "", "addresses of the program under attack, JSON")
	lasting := flag.Duration("for", time.Second, "duration of the attack")
	flag.Parse()
	if err := raiseFiles(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var err error
	if *name != "" {
		if err = attackAlone(*name, *on, *lasting); err == nil {
			return
		}
	} else if err = build(); err == nil {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// raiseFiles raises the limit of open files as far as the kernel lets it, also for programs that
// this process starts.
func raiseFiles() error {
	for _, files := range []uint64{1 << 17, 0} { // more than the hard limit needs privileges
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			return fmt.Errorf("the limit of open files: %w", err)
		}
		limit.Max = max(limit.Max, files)
		limit.Cur = limit.Max
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
			break
		}
	}
	return nil
}

// build builds the sidecar unless the environment names one.
func build() error {
	if os.Getenv(sidecarVariable) != "" {
		return nil
	}
	root, err := parts.Root()
	if err != nil {
		return err
	}
	binary, err := parts.Program(context.Background(), root, "cmd/sidecar", false)
	if err != nil {
		return err
	}
	return os.Setenv(sidecarVariable, binary)
}

// A form is how long and against how many keys an attack runs.
type form struct {
	attack time.Duration
	keys   int // in memory before the attack
}

// currentForm returns the form that the environment variable HOSTILE chooses: a duration, or
// nothing for a moment.
func currentForm(t *testing.T) form {
	t.Helper()
	text := os.Getenv("HOSTILE")
	if text == "" {
		return form{800 * time.Millisecond, 20_000}
	}
	attack, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("HOSTILE: %v", err)
	}
	return form{attack, 1_000_000}
}

// needLinux skips a test on systems without /proc.
func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the memory of a process is read from /proc of Linux")
	}
}
