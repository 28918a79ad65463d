package redisstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/test/parts"
)

// soon is a context for what real processes do on a busy machine.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// await calls a condition until it returns nil.
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

// logLines keeps what is logged, one line for each record.
type logLines struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.text.String()), "\n")
}

// has returns an error unless the lines are, in their order, those that contain the parts.
func (l *logLines) has(parts ...string) error {
	lines := slices.DeleteFunc(l.all(), func(line string) bool { return strings.Contains(line, "anew") }) // of each attempt
	if len(lines) == len(parts) {
		for i, part := range parts {
			if !strings.Contains(lines[i], part) {
				return fmt.Errorf("line %d is not %q:\n%s", i+1, part, strings.Join(lines, "\n"))
			}
		}
		return nil
	}
	return fmt.Errorf("not %d lines:\n%s", len(parts), strings.Join(lines, "\n"))
}

// connecting returns a connection that is closed with the test.
func connecting(t *testing.T, o TargetOptions) (*connection, *logLines) {
	t.Helper()
	target, err := ParseTarget(o)
	if err != nil {
		t.Fatal(err)
	}
	lines := &logLines{}
	c := dial(target, slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { c.close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Error("close does not end")
		}
		if t.Failed() {
			t.Logf("log:\n%s", strings.Join(lines.all(), "\n"))
		}
	})
	return c, lines
}

// connectedTo is connecting and waits until it is.
func connectedTo(t *testing.T, o TargetOptions) (*connection, *logLines) {
	t.Helper()
	c, lines := connecting(t, o)
	if err := c.first(soon(t)); err != nil {
		t.Fatal(err)
	}
	return c, lines
}

// command sends one as the store does and reports its errors as that does.
func (c *connection) command(timeout time.Duration, words ...string) (string, error) {
	client, err := c.client()
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
	if err != nil {
		c.failed(err)
		return "", lost(err)
	}
	c.recovered()
	text, err := message.ToString()
	if err != nil {
		return message.String(), nil
	}
	return text, nil
}

// works returns why a command that writes is not answered.
func (c *connection) works() error {
	_, err := c.command(10*time.Millisecond, "INCR", "{connection}")
	return err
}

// patiently is works with all the time that a busy machine may need.
func (c *connection) patiently() error {
	_, err := c.command(5*time.Second, "INCR", "{connection}")
	return err
}

func TestReasonsAreToldApartByTheirKind(t *testing.T) {
	refused := func(port int) error {
		return unavailable(&net.OpError{Op: "dial", Addr: &net.TCPAddr{Port: port}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})
	}
	reset := unavailable(fmt.Errorf("a:1: no answer: %w", os.NewSyscallError("read", syscall.ECONNRESET)))
	expired := func(detail string) error {
		return unavailable(fmt.Errorf("TLS: %w", &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Detail: detail}}))
	}
	for _, test := range []struct {
		name string
		a, b error
		same bool
	}{
		{"port", refused(1), refused(2), true},
		{"reason", refused(1), reset, false},
		{"detail", expired("now is 1"), expired("now is 2"), true},
		{"TLS", expired(""), reset, false},
		{"version", &unfitError{"1", ErrVersion}, &unfitError{"2", ErrVersion}, true},
		{"version_or_topology", &unfitError{"1", ErrVersion}, &unfitError{"1", ErrTopology}, false},
	} {
		if a, b := kindOf(test.a), kindOf(test.b); (a == b) != test.same {
			t.Errorf("%s: %v is %q, %v is %q", test.name, test.a, a, test.b, b)
		}
	}
}

func TestConnectsToEveryTopology(t *testing.T) {
	binary := redisBinary(t)
	certificates, err := parts.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	files := TargetOptions{CA: certificates.CA, Cert: certificates.ClientCert, Key: certificates.ClientKey}
	locked := parts.RedisOptions{Username: "all", Password: "pass/word@", Users: []string{"weir on >se:cret ~* &* +@all"}, TLS: certificates}
	start := func(o parts.RedisOptions) *parts.Redis {
		r, err := parts.StartRedis(soon(t), binary, t.TempDir(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Kill)
		return r
	}
	for _, test := range []struct {
		name string
		// start returns where a server is and what its log is to say, and what a client of it is to say of itself.
		start func(t *testing.T) (TargetOptions, string, []string)
	}{
		{"TCP", func(*testing.T) (TargetOptions, string, []string) {
			r := start(parts.RedisOptions{})
			return TargetOptions{URLs: urlOf("redis", r.Address())}, "topology=single", []string{"name=weir", "db=0", "user=default"}
		}},
		{"database_and_password", func(*testing.T) (TargetOptions, string, []string) {
			r := start(parts.RedisOptions{Password: "secret"})
			return TargetOptions{URLs: []string{"redis://:secret@" + r.Address() + "/3"}}, "***", []string{"db=3", "user=default"}
		}},
		{"socket", func(*testing.T) (TargetOptions, string, []string) {
			r := start(parts.RedisOptions{Password: "secret"})
			if r.Socket() == "" {
				t.Skip("the path of the temporary folder is too long for a socket")
			}
			return TargetOptions{URLs: []string{"unix://" + r.Socket() + "?db=2"}, Password: "secret"}, "unix://", []string{"db=2", "flags=U"}
		}},
		{"TLS_certificate_user", func(*testing.T) (TargetOptions, string, []string) {
			r := start(locked)
			o := files
			o.URLs = []string{"rediss://weir:se%3Acret@" + r.Address()}
			return o, "rediss://weir:***@", []string{"user=weir"}
		}},
		{"sentinel_TLS", func(t *testing.T) (TargetOptions, string, []string) {
			t.Helper()
			s, err := parts.StartSentinels(soon(t), binary, t.TempDir(), parts.SentinelOptions{Data: locked, Username: "watch", Password: "hidden"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Kill)
			o := files
			o.URLs = []string{"rediss-sentinel://weir:se%3Acret@" + strings.Join(s.Addresses(), ",") + "/" + parts.SentinelName + "/1"}
			o.SentinelUsername, o.SentinelPassword = "watch", "hidden"
			return o, "topology=sentinel", []string{"db=1", "user=weir"}
		}},
		{"cluster_TLS", func(t *testing.T) (TargetOptions, string, []string) {
			t.Helper()
			c, err := parts.StartCluster(soon(t), binary, t.TempDir(), locked)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Kill)
			o := files
			o.URLs = urlOf("rediss-cluster", c.Addresses()[:2]...)
			o.Username, o.Password = "weir", "se:cret"
			return o, "topology=cluster", []string{"user=weir"}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, logged, want := test.start(t)
			c, lines := connectedTo(t, o)
			if err := lines.has(logged); err != nil {
				t.Error(err)
			}
			if strings.Contains(strings.Join(lines.all(), ""), "secret") {
				t.Errorf("a password is logged:\n%s", lines.all())
			}
			client, err := c.client()
			if err != nil {
				t.Fatal(err)
			}
			info, err := client.Do(soon(t), client.B().ClientInfo().Build()).ToString()
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range want {
				if !strings.Contains(info, part) {
					t.Errorf("%q is not in %s", part, info)
				}
			}
			if err := c.patiently(); err != nil {
				t.Error(err)
			}
			for address, node := range client.Nodes() {
				list, err := node.Do(soon(t), node.B().Arbitrary("CLIENT", "LIST").Build()).ToString()
				if n := strings.Count(list, "name=weir "); err != nil || n != 1 {
					t.Errorf("%s: %d connections, %v:\n%s", address, n, err, list)
				}
			}
			if n := len(client.Nodes()); c.cluster() != (n >= 3) { // replicas are said later
				t.Errorf("%d nodes", n)
			}
		})
	}
}

func TestServerThatAppearsLaterIsFound(t *testing.T) {
	binary := redisBinary(t)
	r, err := parts.StartRedis(soon(t), binary, t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	r.Kill()
	c, lines := connecting(t, TargetOptions{URLs: urlOf("redis", r.Address())})
	if err := c.first(soon(t)); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the first attempt: %v", err)
	}
	if err := c.works(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("meanwhile: %v", err)
	}
	if err := r.Restart(soon(t)); err != nil {
		t.Fatal(err)
	}
	await(t, "a command", c.works)
	if err := lines.has("redis is not reachable", "redis connected"); err != nil {
		t.Error(err)
	}
}

func TestRestartedServerIsFoundAgainAndToldOnce(t *testing.T) {
	for _, traffic := range []bool{true, false} {
		t.Run(fmt.Sprintf("traffic=%t", traffic), func(t *testing.T) {
			r, err := parts.StartRedis(soon(t), redisBinary(t), t.TempDir(), parts.RedisOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Kill)
			c, lines := connectedTo(t, TargetOptions{URLs: urlOf("redis", r.Address())})
			if err := c.patiently(); err != nil {
				t.Fatal(err)
			}
			r.Kill()
			for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if !traffic {
					continue
				}
				begun := time.Now()
				if err := c.works(); !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("while it is away: %v", err)
				}
				if took := time.Since(begun); took > time.Second/2 {
					t.Errorf("a command took %v to fail", took)
				}
			}
			if err := r.Restart(soon(t)); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if traffic {
				await(t, "a command", c.works)
				t.Logf("commands succeed %v after the restart", time.Since(begun))
			}
			await(t, "the log", func() error {
				return lines.has("redis connected", "redis is not reachable", "redis is reachable again")
			})
			t.Logf("it is known to be back %v after the restart", time.Since(begun))
			if err := c.patiently(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStoppedServerIsLeftAndFoundAgain(t *testing.T) {
	r, err := parts.StartRedis(soon(t), redisBinary(t), t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	c, lines := connectedTo(t, TargetOptions{URLs: urlOf("redis", r.Address())})
	if err := c.patiently(); err != nil {
		t.Fatal(err)
	}
	if err := r.Pause(soon(t)); err != nil {
		t.Fatal(err)
	}
	begun, failed, unavailable := time.Now(), 0, time.Duration(0)
	var slowest time.Duration
	for time.Since(begun) < 3*time.Second {
		at := time.Now()
		err := c.works()
		slowest = max(slowest, time.Since(at))
		switch {
		case err == nil:
			t.Fatal("a stopped server answers")
		case errors.Is(err, ErrUnavailable) && unavailable == 0:
			unavailable = time.Since(begun)
		default:
			failed++
		}
		time.Sleep(time.Millisecond)
	}
	if err := r.Continue(); err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	await(t, "a command", c.works)
	back := time.Since(begun)
	applied, err := c.command(time.Second, "GET", "{connection}")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("its connection was closed after %v; a command failed after %v at most; commands succeed %v after it goes on; %s of %d were applied",
		unavailable, slowest, back, applied, failed)
	if unavailable == 0 || unavailable > 2500*time.Millisecond {
		t.Errorf("its connection was closed after %v", unavailable)
	}
	await(t, "the log", func() error {
		return lines.has("redis connected", "redis is not reachable", "redis is reachable again")
	})
}

func TestCommandThatTimesOutCostsNoConnection(t *testing.T) {
	r, err := parts.StartRedis(soon(t), redisBinary(t), t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	c, _ := connectedTo(t, TargetOptions{URLs: urlOf("redis", r.Address())})
	id, err := c.command(time.Second, "CLIENT", "ID")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.command(time.Second, "CLIENT", "PAUSE", "200", "ALL"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := c.works(); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) {
		t.Errorf("while it pauses: %v", err)
	}
	t.Logf("it timed out after %v", time.Since(begun))
	await(t, "a command", c.works)
	if again, err := c.command(time.Second, "CLIENT", "ID"); err != nil || again != id {
		t.Errorf("connection %s became %s, %v", id, again, err)
	}
}

func TestWrongPasswordIsToldOnceAndTriedAgain(t *testing.T) {
	r, err := parts.StartRedis(soon(t), redisBinary(t), t.TempDir(), parts.RedisOptions{
		Username: "all", Password: "x", Users: []string{"weir on >right ~* &* +@all"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	c, lines := connecting(t, TargetOptions{URLs: []string{"redis://weir:wrong@" + r.Address()}})
	for range 2 {
		if err := c.first(soon(t)); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("got %v", err)
		}
	}
	await(t, "some attempts", func() error {
		message, err := r.Do(soon(t), "ACL", "LOG")
		if err != nil {
			return err
		}
		if text := fmt.Sprint(message.String()); !strings.Contains(text, "weir") {
			return errors.New(text)
		}
		return nil
	})
	if _, err := r.Do(soon(t), "ACL", "SETUSER", "weir", ">wrong"); err != nil {
		t.Fatal(err)
	}
	await(t, "a command", c.works)
	if err := lines.has("WRONGPASS", "redis connected"); err != nil {
		t.Error(err)
	}
}

func TestUserThatMayNotAskForTheVersionIsServed(t *testing.T) {
	r, err := parts.StartRedis(soon(t), redisBinary(t), t.TempDir(), parts.RedisOptions{
		Username: "all", Password: "x", Users: []string{"weir on >secret ~* &* +@all -info"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	c, lines := connectedTo(t, TargetOptions{URLs: []string{"redis://weir:secret@" + r.Address()}})
	if err := c.patiently(); err != nil {
		t.Error(err)
	}
	c.failed(context.DeadlineExceeded) // has it asked again
	if err := r.Restart(soon(t)); err != nil {
		t.Fatal(err)
	}
	await(t, "a command", c.works)
	text := strings.Join(lines.all(), "\n")
	if strings.Count(text, "redis does not say its version") != 1 || !strings.Contains(text, "version=unknown") {
		t.Errorf("log:\n%s", text)
	}
}

func TestTopologyOtherThanTheURLsIsRefused(t *testing.T) {
	cluster := sharedCluster(t)
	s, err := parts.StartSentinels(soon(t), redisBinary(t), t.TempDir(), parts.SentinelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	for _, test := range []struct {
		name string
		urls []string
		want string
	}{
		{"node_of_a_cluster", urlOf("redis", cluster.Addresses()[0]), "is a node of a cluster: write redis-cluster://host,host"},
		{"sentinel", urlOf("redis", s.Addresses()[0]), "is a Sentinel: write redis-sentinel://host,host/primary"},
		{"no_cluster", urlOf("redis-cluster", s.Data[0].Address()), "no cluster at " + s.Data[0].Address() + ": write redis://host"},
		{"no_cluster_of_two", urlOf("redis-cluster", s.Data[0].Address(), s.Data[1].Address()), "no cluster at "},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, lines := connecting(t, TargetOptions{URLs: test.urls})
			err := c.first(soon(t))
			if !errors.Is(err, ErrTopology) || !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if err := lines.has("redis is not reachable"); err != nil {
				t.Error(err)
			}
		})
	}
	c, _ := connecting(t, TargetOptions{URLs: []string{"redis-sentinel://" + s.Addresses()[0] + "/nobody"}})
	if err := c.first(soon(t)); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "No such master with that name") {
		t.Errorf("a primary that nobody knows: %v", err)
	}
}

func TestClientIsMadeAnewWhenNothingSucceeds(t *testing.T) {
	r, err := parts.StartRedis(soon(t), redisBinary(t), t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	c, lines := connectedTo(t, TargetOptions{URLs: urlOf("redis", r.Address())})
	old, err := c.client()
	if err != nil {
		t.Fatal(err)
	}
	readOnly := old.Do(soon(t), old.B().Arbitrary("EVAL", "return redis.error_reply('READONLY it is a replica')", "0").Build()).Error()
	c.failed(readOnly)
	c.failing.Store(time.Now().Add(-allFailing - time.Second).UnixNano())
	c.failed(old.Do(soon(t), old.B().Arbitrary("NONSENSE").Build()).Error()) // it has answered
	if c.failing.Load() != 0 {
		t.Error("what Redis says of a command counts as a failure")
	}
	c.failing.Store(time.Now().Add(-allFailing - time.Second).UnixNano())
	c.failed(readOnly)
	await(t, "another client", func() error {
		client, err := c.client()
		if err == nil && client == old {
			err = errors.New("it is the old one")
		}
		return err
	})
	if err := c.patiently(); err != nil {
		t.Error(err)
	}
	if err := old.Do(soon(t), old.B().Ping().Build()).Error(); !errors.Is(err, rueidis.ErrClosing) {
		await(t, "the old client to be closed", func() error {
			if err := old.Do(soon(t), old.B().Ping().Build()).Error(); !errors.Is(lost(err), ErrUnavailable) {
				return fmt.Errorf("it says %w", err)
			}
			return nil
		})
	}
	if err := lines.has("redis connected"); err != nil {
		t.Error(err)
	}
	if _, err := r.Do(soon(t), "PING"); err != nil {
		t.Fatal(err)
	}
	await(t, "one connection", func() error {
		list, err := c.command(time.Second, "CLIENT", "LIST")
		if n := strings.Count(list, "name=weir "); err != nil || n != 1 {
			return fmt.Errorf("%d connections, %w", n, err)
		}
		return nil
	})
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, in the kernel, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	address := silent.Addr().String()
	for _, test := range []struct {
		name string
		urls []string
		wait bool
	}{
		{"connected", urlOf("redis", shared(t).Address()), true},
		{"cluster", urlOf("redis-cluster", sharedCluster(t).Addresses()...), true},
		{"connecting", urlOf("redis", address), false},
		{"connecting_cluster", urlOf("redis-cluster", address, sharedCluster(t).Addresses()[0]), false},
		{"connecting_sentinel", []string{"redis-sentinel://" + address + "/x"}, false},
		{"failed", urlOf("redis", address), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, _ := connecting(t, TargetOptions{URLs: test.urls})
			if test.wait {
				_ = c.first(soon(t)) // some fail
			}
			begun := time.Now()
			c.close()
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			if _, err := c.client(); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errClosed) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
	// rueidis waits some seconds before it closes what a cluster has no more.
	await(t, "goroutines to end", func() error {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for stack := range strings.SplitSeq(string(stacks), "\n\n") {
			if strings.Contains(stack, "rueidis") || strings.Contains(stack, "redisstore.(*") {
				return errors.New(stack)
			}
		}
		return nil
	})
}
