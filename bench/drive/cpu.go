package drive

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU returns the CPU time that a process has used, in user and kernel, to a hundredth of a second; none for the process 0. The time
// comes from /proc, so only Linux has it.
func CPU(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of a server: %w", err)
	}
	return cpuOf(string(stat))
}

// cpuOf reads utime and stime, fields 14 and 15, of a line of /proc/PID/stat. The values count ticks of USER_HZ, 100 a second on
// every Linux that Go runs on. Field 2 is a name in brackets that may hold anything.
func cpuOf(stat string) (time.Duration, error) {
	i := strings.LastIndex(stat, ")")
	fields := strings.Fields(stat[i+1:])
	if i < 0 || len(fields) < 13 {
		return 0, errors.New("/proc/PID/stat: not as expected")
	}
	var ticks uint64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseUint(f, 10, 63)
		if err != nil {
			return 0, fmt.Errorf("/proc/PID/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}
