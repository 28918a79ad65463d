package redis

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/wire/certificates", "internal/loglimit", "internal/regular", "internal/rawio", "internal/redis/resp"},
		Third: []string{"github.com/redis/rueidis"},
	})
}

// started starts servers for one test. Without a redis-server started skips the test, or fails it
// where Redis is required.
func started[T interface{ Kill() }, O any](t *testing.T, start func(ctx context.Context, binary, dir string, o O) (T, error), o O) T {
	t.Helper()
	servers := must.Get(start(soon(t), parts.NeedRedis(t, filepath.Join("..", "..")), t.TempDir(), o))(t)
	t.Cleanup(servers.Kill)
	return servers
}

func startRedis(t *testing.T, o parts.RedisOptions) *parts.Redis {
	t.Helper()
	return started(t, parts.StartRedis, o)
}

// steadyCluster starts a cluster without failovers for one test.
func steadyCluster(t *testing.T, o parts.RedisOptions) *parts.Cluster {
	t.Helper()
	c := started(t, parts.StartCluster, o)
	must.Do(t, c.DisableFailover(soon(t)))
	return c
}

// urlOf returns the URL of one Redis, or of a cluster.
func urlOf(scheme string, addresses ...string) []string {
	return []string{scheme + "://" + strings.Join(addresses, ",")}
}

// goroutines labels the goroutine of a test, and so all goroutines that the test starts from then
// on. The function that it returns says how many of them run now, and where. Tests beside this one
// do not count.
func goroutines(t *testing.T) func() (running int, stacks []string) {
	t.Helper()
	labels := pprof.Labels("test", t.Name())
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), labels))
	mark := fmt.Sprintf("# labels: {%q:%q}", "test", t.Name())
	return func() (running int, stacks []string) {
		t.Helper()
		var profile bytes.Buffer
		must.Do(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
		for stack := range strings.SplitSeq(profile.String(), "\n\n") {
			if !strings.Contains(stack, mark) {
				continue
			}
			if first, rest, _ := strings.Cut(stack, "\n"); strings.HasPrefix(first, "goroutine profile:") {
				stack = rest
			}
			n := 0
			if _, err := fmt.Sscanf(stack, "%d @", &n); err != nil {
				t.Fatalf("%v in %s", err, stack)
			}
			running += n
			stacks = append(stacks, stack)
		}
		if running == 0 {
			t.Fatal("the goroutine of the test has no label")
		}
		return running, stacks
	}
}

// soon returns a context with time enough for processes on a busy machine.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// await calls the condition until the condition returns nil.
func await(t *testing.T, what string, condition func() error) {
	t.Helper()
	ctx := soon(t)
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// logLines keeps the log, one line for each record.
type logLines struct {
	logtest.Log
	ignored *regexp.Regexp // has skips lines that match; nil skips no line
}

// has returns an error unless each line contains the wanted part, in their order.
func (l *logLines) has(want ...string) error {
	lines := slices.DeleteFunc(l.Lines(), func(line string) bool {
		return strings.Contains(line, "anew") || l.ignored != nil && l.ignored.MatchString(line) // "anew" is in a line of each attempt
	})
	if len(lines) == len(want) {
		for i, part := range want {
			if !strings.Contains(lines[i], part) {
				return fmt.Errorf("line %d is not %q:\n%s", i+1, part, strings.Join(lines, "\n"))
			}
		}
		return nil
	}
	return fmt.Errorf("not %d lines:\n%s", len(want), strings.Join(lines, "\n"))
}

// about returns the number of lines about a node that contain a part.
func (l *logLines) about(node *parts.Redis, part string) (n int) {
	for _, line := range l.Lines() {
		if strings.Contains(line, part) && strings.Contains(line, "node="+node.Address()+" ") {
			n++
		}
	}
	return n
}

// connecting returns a Conn that the test closes.
func connecting(t *testing.T, o Options) (*Conn, *logLines) {
	t.Helper()
	target := must.Get(o.Parse())(t)
	lines := &logLines{}
	c := Dial(target, slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { c.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Error("close does not end")
		}
		if t.Failed() {
			t.Logf("log:\n%s", strings.Join(lines.Lines(), "\n"))
		}
	})
	return c, lines
}

// attempt returns a Conn, and the error of its first attempt to connect. On a busy machine a login
// may take longer than package redis waits: then attempt makes another Conn.
func attempt(t *testing.T, o Options) (*Conn, *logLines, error) {
	t.Helper()
	for tries := 1; ; tries++ {
		c, lines := connecting(t, o)
		err := c.Await(soon(t))
		if tries == 10 || !isSlow(err) {
			return c, lines, err
		}
		c.Close()
	}
}

// slow is a regular expression of errors of a server that does not answer in time, and of lines
// with these errors.
const slow = `no answer|i/o timeout|deadline exceeded|still connecting|use of closed network connection`

func isSlow(err error) bool {
	matched := false
	if err != nil {
		matched, _ = regexp.MatchString(slow, err.Error())
	}
	return matched
}

// connectedTo returns a Conn that has connected, at its first attempt.
func connectedTo(t *testing.T, o Options) (*Conn, *logLines) {
	t.Helper()
	c, lines, err := attempt(t, o)
	if err != nil {
		t.Fatal(err)
	}
	return c, lines
}

// command sends a command, and reports its result, as redisstore does.
func (c *Conn) command(timeout time.Duration, words ...string) (string, error) {
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	command := client.B().Arbitrary(words[0])
	if len(words) > 1 {
		command = command.Keys(words[1]).Args(words[2:]...)
	}
	message, err := client.Do(ctx, command.Build()).ToMessage()
	if err := c.Report(err); err != nil {
		return "", err
	}
	text, err := message.ToString()
	if err != nil {
		return message.String(), nil
	}
	return text, nil
}

// works returns the error of a command that writes, with 10 ms.
func (c *Conn) works() error {
	_, err := c.command(10*time.Millisecond, "INCR", "{connection}")
	return err
}

// A pace times the commands of a test, apart from the time in which this process did not run. Make
// one with newPace.
type pace struct {
	t *testing.T

	mu   sync.Mutex    // guards the rest
	tick time.Time     // of the latest tick
	late time.Duration // sum of the delays of all ticks
}

// paceInterval is the time between two ticks of a pace.
const paceInterval = 5 * time.Millisecond

// newPace starts a ticker, which ends with the test. A late tick shows that this process did not
// run.
func newPace(t *testing.T) *pace {
	t.Helper()
	p := &pace{t: t, tick: time.Now()}
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	go func() {
		tick := time.NewTicker(paceInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.mu.Lock()
				p.late, p.tick = p.lateLocked(), time.Now()
				p.mu.Unlock()
			case <-ended:
				return
			}
		}
	}()
	return p
}

// lateLocked returns the sum of the delays of all ticks, with the delay of the next tick so far.
func (p *pace) lateLocked() time.Duration { return p.late + max(0, time.Since(p.tick)-paceInterval) }

// works returns the error of a command that writes. The command has a deadline of 10 ms, and must
// end within 500 ms: a command never waits for a dial.
func (p *pace) works(c *Conn) error {
	p.t.Helper()
	late := func() time.Duration {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.lateLocked()
	}
	before, begun := late(), time.Now()
	err := c.works()
	if took, away := time.Since(begun), late()-before; took > time.Second/2+2*away { // the command may have waited for a processor as often as the ticker
		p.t.Errorf("a command took %v to end with %v; the process did not run for %v of that", took, err, away)
	}
	return err
}

// patiently returns the error of a command that writes, with 5 s for a busy machine.
func (c *Conn) patiently() error {
	_, err := c.command(5*time.Second, "INCR", "{connection}")
	return err
}
