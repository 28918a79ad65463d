package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// build builds a main package of this module into a file.
func build(ctx context.Context, to, pkg string, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = stderr, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return nil
}

// server is a process that serves gRPC.
type server struct {
	cmd     *exec.Cmd
	log     *log
	address string // host:port
	ended   chan struct{}
}

// launch starts a server and waits until it says where it listens. An empty gogc is none.
func launch(ctx context.Context, gogc string, command []string) (*server, error) {
	s := &server{cmd: exec.CommandContext(ctx, command[0], command[1:]...), log: newLog(), ended: make(chan struct{})}
	s.cmd.Stderr = s.log
	s.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOGC=") })
	if gogc != "" {
		s.cmd.Env = append(s.cmd.Env, "GOGC="+gogc)
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait() // how it ended is not asked; its log says why
		close(s.ended)
	}()
	select {
	case s.address = <-s.log.address:
		return s, nil
	case <-s.ended:
		return nil, fmt.Errorf("it ended: %s", s.log.text())
	case <-time.After(30 * time.Second):
	case <-ctx.Done():
	}
	s.stop()
	return nil, fmt.Errorf("it does not listen: %s", s.log.text())
}

// stop ends the server and waits until it has ended.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-s.ended:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// cpu returns the CPU time that the server has used, in user and kernel, to a hundredth of a second.
func (s *server) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of a server: %w", err)
	}
	return cpuOf(string(stat))
}

// cpuOf reads utime and stime, fields 14 and 15, of a line of /proc/PID/stat. They count ticks of USER_HZ, 100 a second on
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

// log takes the lines that a server writes and finds the one about its gRPC listener.
type log struct {
	address chan string

	mu    sync.Mutex // guards what follows
	all   bytes.Buffer
	found bool
}

func newLog() *log { return &log{address: make(chan string, 1)} }

// Write implements [io.Writer].
func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all.Len() < 1<<20 {
		l.all.Write(p)
	}
	for lines := bufio.NewScanner(bytes.NewReader(l.all.Bytes())); !l.found && lines.Scan(); {
		var line struct{ Msg, Server, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" && line.Server == "grpc" {
			l.found = true
			l.address <- line.Address
		}
	}
	return len(p), nil
}

func (l *log) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.all.String())
}
