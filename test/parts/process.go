// Package parts builds, finds, starts and stops the programs of tests and the demo: the sidecar,
// Envoy, and Redis or Valkey. Redis runs alone, behind Sentinels or as a cluster. The package knows
// how each program reports that it is ready, and its addresses. The package can also hurt a
// program: kill it, stop it, start a failover, or put a Proxy with network faults before it. The
// package asserts nothing; callers judge the programs.
package parts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// A Process is a running program whose output (standard output and standard error together) is
// kept, line by line, in memory. A Process is safe for concurrent use. Make one with Start, and end
// it with Stop or Kill.
type Process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the program has ended and all of its output is in lines

	mu      sync.Mutex    // guards the fields below
	lines   []string      // complete lines, without the newline
	partial []byte        // the output after the last newline
	changed chan struct{} // closed, and replaced, whenever lines grows
	err     error         // the result of Wait, set before exited is closed
}

// Start runs the program at path. Name is the program's name in errors.
func Start(name, path string, args ...string) (*Process, error) {
	return StartIn(nil, name, path, args...)
}

// StartIn is Start with an environment of NAME=value; nil means the environment of this process.
func StartIn(environ []string, name, path string, args ...string) (*Process, error) {
	return StartBelow("", environ, name, path, args...)
}

// StartBelow is StartIn for a program that has the directory root for /, and starts there. Path is
// below root. An empty root changes nothing. Only a user who may change the root directory can
// start such a program: root, or a process of a world, see InWorld.
func StartBelow(root string, environ []string, name, path string, args ...string) (*Process, error) {
	p := &Process{
		name:    name,
		cmd:     exec.Command(path, args...),
		exited:  make(chan struct{}),
		changed: make(chan struct{}),
	}
	out := output{p}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = attributes()
	p.cmd.Env = environ
	if root != "" {
		p.cmd.SysProcAttr.Chroot, p.cmd.Dir = root, "/"
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go p.wait()
	return p, nil
}

// wait collects the end of the program.
func (p *Process) wait() {
	err := p.cmd.Wait()
	p.mu.Lock()
	p.err = err
	if len(p.partial) > 0 {
		p.appendLocked(string(p.partial))
		p.partial = nil
	}
	p.mu.Unlock()
	close(p.exited)
}

// appendLocked adds one complete line and wakes everybody who waits for one.
func (p *Process) appendLocked(line string) {
	p.lines = append(p.lines, line)
	close(p.changed)
	p.changed = make(chan struct{})
}

// output is where a Process's program writes to. os/exec calls it from one goroutine.
type output struct{ process *Process }

// Write splits b into lines.
func (o output) Write(b []byte) (int, error) {
	p := o.process
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = append(p.partial, b...)
	for {
		line, rest, found := bytes.Cut(p.partial, []byte("\n"))
		if !found {
			return len(b), nil
		}
		p.appendLocked(string(line))
		p.partial = rest
	}
}

// Lines returns all lines so far.
func (p *Process) Lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// Tail returns the last n lines, joined, for an error or a failing test's log.
func (p *Process) Tail(n int) string {
	lines := p.Lines()
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Mark returns how many lines there are; Await can start from there.
func (p *Process) Mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}

// Await returns the first line, from the line with the number from on, that match accepts, and the
// number of the line after it. Await waits until ctx is done or the program has ended; both are
// errors that show the last lines.
func (p *Process) Await(ctx context.Context, from int, match func(line string) bool) (string, int, error) {
	for {
		// Whether it has ended is asked before the lines are: after the end there are no new ones.
		ended := false
		select {
		case <-p.exited:
			ended = true
		default:
		}
		p.mu.Lock()
		lines, changed := p.lines, p.changed
		p.mu.Unlock()
		for ; from < len(lines); from++ {
			if match(lines[from]) {
				return lines[from], from + 1, nil
			}
		}
		if ended {
			return "", from, p.endError()
		}
		select {
		case <-changed:
		case <-p.exited:
		case <-ctx.Done():
			return "", from, fmt.Errorf("waiting for a line of %s: %w; its last lines:\n%s", p.name, context.Cause(ctx), p.Tail(20))
		}
	}
}

// endError reports that the program has ended, how, and its last lines.
func (p *Process) endError() error {
	return fmt.Errorf("%s has ended (%s); its last lines:\n%s", p.name, p.cmd.ProcessState, p.Tail(20))
}

// PID is the number of the program's process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed once the program has ended and all its lines are there.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Signal sends a signal. A program that has ended already is no error.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Wait returns the program's exit code (-1 when a signal ended it) once it has ended. When ctx is
// done before that, it returns an error and the program keeps running.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return -1, fmt.Errorf("waiting for %s to end: %w; its last lines:\n%s", p.name, context.Cause(ctx), p.Tail(20))
	}
}

// Stop asks the program to end (SIGTERM), waits for it, and kills it when ctx is done before it has
// ended, which is an error. So is an exit code other than 0.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err != nil {
		p.Kill()
		return err
	}
	if code != 0 {
		return p.endError()
	}
	return nil
}

// Kill ends the program at once and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only for a program that has ended
	<-p.exited
}
