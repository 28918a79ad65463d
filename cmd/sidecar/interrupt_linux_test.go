package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The first Ctrl-C ends the watch, but not a write to a pipe that nobody reads. The second one must
// end the process.
func TestASecondSignalEndsAWatchThatNobodyReads(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, rulesOf("2")), "--http-json=on")
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()                            // was only read
	size, err := unix.FcntlInt(from.Fd(), unix.F_SETPIPE_SZ, 4096) // the lines of one request do not fit
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sidecar", "watch", "--server", r.address["admin tcp"])
	cmd.Stdout, cmd.Stderr = to, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Error(err)
	}
	if _, err := from.Read(make([]byte, 4096)); err != nil { // the header: the watch has begun
		t.Fatal(err)
	}
	body := `{"domain": "test", "descriptors": [` + strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"entries": [{"key": "%0100d", "value": "x"}]},`, 0), 100), ",") + `]}`
	for waits := 0; waits < size/2; {
		r.post(t, "/json", body)
		if waits, err = unix.IoctlGetInt(int(from.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 { // more than there is room for
		r.post(t, "/json", body)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	again, late := time.NewTicker(10*time.Millisecond), time.After(30*time.Second)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			_ = cmd.Process.Signal(syscall.SIGINT) // fails once the process has ended
		case err := <-ended:
			if err == nil || err.Error() != "signal: interrupt" {
				t.Errorf("the watch ended with %v, want by the signal", err)
			}
			return
		case <-late:
			t.Fatal("the watch does not end")
		}
	}
}
