package drive

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the CPU time that a process has used, in user and kernel, to the nanosecond. The time
// comes from the clock of that process, so only Linux has it.
func CPU(pid int) (time.Duration, error) {
	const scheduler = 2 // CPUCLOCK_SCHED, see clock_getcpuclockid(3)
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &used); err != nil {
		return 0, fmt.Errorf("read the CPU time of a server: %w", err)
	}
	return time.Duration(used.Nano()), nil
}
