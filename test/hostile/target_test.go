package hostile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// within is how long a test waits for work of milliseconds.
const within = time.Minute

// rules are the rules of the program under test. Requests for `far` always pass. The honest client
// spends `small` and `weighted` before an attack.
const rules = `domain: hostile
descriptors:
  - key: far
    rate_limit: {unit: hour, requests_per_unit: 4294967295}
  - key: small
    rate_limit: {unit: year, requests_per_unit: 50}
  - key: weighted
    rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 100}
  - key: flood
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: divided
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1000000}
  - key: together
    value: q-*
    share_threshold: true
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1000000}
  - key: log
    rate_limit: {algorithm: sliding_window_log, unit: hour, requests_per_unit: 1000}
`

// manyLimits is a rule for `many` with as many limits as a rule may have. Requests for `many`
// always pass.
func manyLimits() string {
	var b strings.Builder
	b.WriteString("  - key: many\n    rate_limits:\n")
	for i := range 40 {
		fmt.Fprintf(&b, "    - {unit: hour, requests_per_unit: %d}\n", 4294967295-i)
	}
	return b.String()
}

// A target is a running sidecar in a cgroup, and its memory.
type target struct {
	*parts.Sidecar
	group *cgroup      // nil: the kernel does not let us
	top   atomic.Int64 // largest resident memory that was seen, in bytes
}

// start runs the program with the defaults and more arguments, in a cgroup of its own.
func start(t *testing.T, more ...string) *target {
	t.Helper()
	dir := t.TempDir()
	group, err := newCgroup(t)
	enter := "export GOMEMLIMIT=" + strconv.Itoa(containerLimit/10*9)
	if err != nil {
		t.Logf("no cgroup of %d MiB: %v", containerLimit>>20, err)
	} else {
		enter = group.enter()
	}
	script := fmt.Sprintf("#!/bin/sh\n%s && exec %q \"$@\"\n", enter, os.Getenv(sidecarVariable))
	program := filepath.Join(dir, "sidecar")
	writeFile(t, program, script, 0o700)
	file := filepath.Join(dir, "rules.yaml")
	writeFile(t, file, rules+manyLimits(), 0o600)
	args := slices.Concat([]string{
		"--rules=" + file, "--grpc-address=127.0.0.1:0", "--grpc-socket=" + filepath.Join(dir, "socket"),
		"--http-address=127.0.0.1:0", "--admin-address=127.0.0.1:0",
	}, more)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	process, err := parts.StartSidecar(ctx, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	s := &target{Sidecar: process, group: group}
	sampling, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.sample(sampling)
	}()
	t.Cleanup(func() {
		stop()
		<-done
		s.Kill()
	})
	return s
}

// sample keeps the largest resident memory until ctx ends. The kernel forgets the figure with the
// process.
func (s *target) sample(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if now := s.memory("VmHWM"); now > s.top.Load() {
			s.top.Store(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// memory returns a line of /proc/PID/status in bytes, such as VmRSS (now) and VmHWM (the largest so
// far); 0 after the end.
func (s *target) memory(name string) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, name+":"); found {
			kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return kilobytes << 10
		}
	}
	return 0
}

// peak returns the largest resident memory so far, in bytes.
func (s *target) peak() int64 { return max(s.top.Load(), s.memory("VmHWM")) }

// ended reports whether the program has ended.
func (s *target) ended() bool {
	select {
	case <-s.Exited():
		return true
	default:
		return false
	}
}

// metric returns the sum of a metric over its labels.
func (s *target) metric(ctx context.Context, name string) (float64, error) {
	_, text, err := parts.Page(ctx, "GET", "http://"+s.HTTP+"/metrics", "")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); bare != name {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %q: %w", line, err)
		}
		sum += n
	}
	return sum, nil
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	// A process that another goroutine starts meanwhile would hold the file open for writing, and
	// nobody could run the file.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// mebibytes writes bytes for people.
func mebibytes(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }
