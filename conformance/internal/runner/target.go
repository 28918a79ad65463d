// Package runner plays cases against a rate limit service.
package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weirproxy/weir/conformance/cases"
	"github.com/weirproxy/weir/conformance/internal/forms"
)

// startTime bounds the time until a target serves its rules.
const startTime = 30 * time.Second

// A target is a service under test, and its process where the runner started it.
type target struct {
	address   string
	process   *process // nil where somebody else started the service
	redis     *redis   // nil without Redis
	directory string   // holds the directory of the rules
	form      string
	command   string
	domains   []cases.Domain
	texts     map[string]string // of domains in place of their rules
	version   int               // of the rules
}

// A process is a program that the runner started.
type process struct {
	command *exec.Cmd
	output  *tail
	ended   chan struct{} // closed when the process has ended
	err     error         // of its end; read after ended is closed
}

// start runs a command line of a shell with more variables in its environment.
func start(line string, environ []string) (*process, error) {
	p := &process{command: exec.Command("sh", "-c", "exec "+line), output: new(tail), ended: make(chan struct{})}
	p.command.Env = append(os.Environ(), environ...)
	p.command.Stdout, p.command.Stderr = p.output, p.output
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) signal(s syscall.Signal) error { return p.command.Process.Signal(s) }

// kill ends the process and all of its group.
func (p *process) kill() {
	_ = syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

// A tail keeps the last bytes of an output, and is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

func (t *tail) Write(text []byte) (int, error) {
	const most = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	if n := len(t.text) - most; n > 0 {
		t.text = t.text[n:]
	}
	return len(text), nil
}

// lastLines returns the last lines of the output.
func (t *tail) lastLines(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// freePort returns a port of this machine that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	address, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("address %v is not of TCP", l.Addr())
	}
	return address.Port, nil
}

// startTarget writes the rules, starts the command and waits until the rules are served. With
// failovers the target has a Sentinel to ask.
func (r *Runner) startTarget(ctx context.Context, domains []cases.Domain, failovers bool) (*target, error) {
	t := &target{address: r.Target, form: r.Form, command: r.Start, domains: domains, texts: map[string]string{}}
	if t.command == "" {
		return t, nil
	}
	var err error
	if t.directory, err = os.MkdirTemp("", "rls-conformance-"); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(t.directory, "config"), 0o755); err != nil {
		return nil, t.abandon(err)
	}
	if r.Redis != "" {
		if failovers {
			t.redis, err = startSentinel(r.Redis)
		} else {
			t.redis, err = startRedis(r.Redis, "")
		}
		if err != nil {
			return nil, t.abandon(err)
		}
	}
	if err := t.write(); err != nil {
		return nil, t.abandon(err)
	}
	// Another program may take a free port before the target does.
	for range 3 {
		if err = t.run(ctx); err == nil || !strings.Contains(err.Error(), "address already in use") {
			break
		}
		t.process.kill()
	}
	if err != nil {
		return nil, t.abandon(err)
	}
	return t, nil
}

// abandon ends a target that did not start, and returns err.
func (t *target) abandon(err error) error {
	t.end()
	return err
}

func (t *target) write() error {
	t.version++
	return forms.Write(t.form, filepath.Join(t.directory, "config"), t.directory, t.marker(), t.domains, t.texts)
}

func (t *target) marker() string { return "v" + strconv.Itoa(t.version) }

// run starts the process of the target, on free ports, and waits until its rules are served.
func (t *target) run(ctx context.Context) error {
	environ := []string{
		"RLS_DIR=" + t.directory, "RLS_RULES=" + filepath.Join(t.directory, "config"),
		"RLS_LIMITS=" + filepath.Join(t.directory, "config", "limits.yaml"),
	}
	for _, name := range []string{"RLS_PORT", "RLS_HTTP_PORT", "RLS_DEBUG_PORT", "RLS_METRICS_PORT"} {
		port, err := freePort()
		if err != nil {
			return err
		}
		environ = append(environ, fmt.Sprintf("%s=%d", name, port))
		if name == "RLS_PORT" {
			t.address = fmt.Sprintf("127.0.0.1:%d", port)
		}
	}
	if t.redis != nil {
		environ = append(environ, "RLS_REDIS="+t.redis.address())
		if t.redis.sentinel != nil {
			environ = append(environ, "RLS_PRIMARY="+primaryName, "RLS_SENTINEL="+t.redis.sentinel.server.address())
		}
	}
	p, err := start(t.command, environ)
	if err != nil {
		return err
	}
	t.process = p
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := t.awaitRules(ctx); err != nil {
		return fmt.Errorf("the target did not start: %w\n%s", err, p.output.lastLines(20))
	}
	return nil
}

// awaitRules waits until the target serves the rules that were written last.
func (t *target) awaitRules(ctx context.Context) error {
	c, err := dial(t.address)
	if err != nil {
		return err
	}
	defer c.Close()
	ask := fmt.Sprintf("domain:%s ready=%s timeout:1s", forms.ReadyDomain, t.marker())
	for {
		err := c.expect(ctx, ask, "OVER")
		if err == nil {
			return nil
		}
		if t.process != nil && !t.process.alive() {
			return fmt.Errorf("the process ended: %w\n%s", t.process.err, t.process.output.lastLines(12))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the rules are not served: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// reload writes the rules again and waits until they are served.
func (t *target) reload(ctx context.Context) error {
	if t.process == nil {
		return errors.New("a reload needs a target that the runner started")
	}
	if err := t.write(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return t.awaitRules(ctx)
}

// revive starts the target anew when its process has ended, and returns how it ended.
func (t *target) revive(ctx context.Context) error {
	if t.process == nil || t.process.alive() {
		return nil
	}
	ended := fmt.Errorf("the process of the target ended: %w\n%s", t.process.err, t.process.output.lastLines(8))
	if err := t.run(ctx); err != nil {
		return errors.Join(ended, err)
	}
	return ended
}

// end ends all that the runner started.
func (t *target) end() {
	if t.process != nil {
		t.process.kill()
	}
	if t.redis != nil {
		t.redis.end()
	}
	if t.directory != "" {
		_ = os.RemoveAll(t.directory)
	}
}
