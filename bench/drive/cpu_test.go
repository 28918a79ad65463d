package drive

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCPUTimeIsThatOfTheProcess(t *testing.T) {
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &before); err != nil {
		t.Fatal(err)
	}
	got, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &after); err != nil {
		t.Fatal(err)
	}
	if got.Nanoseconds() < before.Nano() || got.Nanoseconds() > after.Nano() {
		t.Errorf("CPU: got %v; want from %d to %d ns", got, before.Nano(), after.Nano())
	}
	if got, err := CPU(1 << 24); err == nil { // above every process number of Linux
		t.Errorf("CPU of no process: got %v; want an error", got)
	}
}
