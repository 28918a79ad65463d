package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
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

// pid is the server's process.
func (s *server) pid() int { return s.cmd.Process.Pid }

// http waits until a sidecar says where its HTTP server listens, and returns that.
func (s *server) http(ctx context.Context) (string, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if address := s.log.http(); address != "" {
			return address, nil
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return "", fmt.Errorf("it ended: %s", s.log.text())
		case <-ctx.Done():
			return "", fmt.Errorf("it has no HTTP server: %w: %s", ctx.Err(), s.log.text())
		}
	}
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
		if address := listens(lines.Bytes(), "grpc"); address != "" {
			l.found = true
			l.address <- address
		}
	}
	return len(p), nil
}

// listens returns the address of a line that says that one of a process's servers listens, "" for another line.
func listens(line []byte, name string) string {
	var l struct{ Msg, Server, Address string }
	if json.Unmarshal(line, &l) != nil || l.Msg != "listening" || l.Server != name {
		return ""
	}
	return l.Address
}

// http returns the address of the process's HTTP server, "" while it has said of none.
func (l *log) http() string {
	for line := range strings.Lines(l.text()) {
		if address := listens([]byte(line), "http"); address != "" {
			return address
		}
	}
	return ""
}

func (l *log) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.all.String())
}
