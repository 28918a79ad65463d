package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

func TestServerThatAppearsLaterIsFound(t *testing.T) {
	r := startRedis(t, parts.RedisOptions{})
	r.Kill()
	c, lines := connecting(t, Options{URLs: urlOf("redis", r.Address())})
	if err := c.Await(soon(t)); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the first attempt: %v", err)
	}
	if err := c.works(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a command before the server runs: %v", err)
	}
	must.Do(t, r.Restart(soon(t)))
	await(t, "a command", c.works)
	if err := lines.has("redis is not reachable", "redis connected"); err != nil {
		t.Error(err)
	}
}

// A fleet uses its shares until each Weir has dialed Redis again.
func TestAServerIsDialedAgainWithinHalfASecondHoweverLongItWasAway(t *testing.T) {
	for failures := range 1000 {
		if wait := backoff(failures); wait < minBackoff/2 || wait >= 400*time.Millisecond {
			t.Fatalf("after %d failures: %v", failures, wait)
		}
	}
}

func TestRestartedServerIsReconnectedAndLoggedOnce(t *testing.T) {
	t.Parallel()
	for _, traffic := range []bool{true, false} {
		t.Run(fmt.Sprintf("traffic=%t", traffic), func(t *testing.T) {
			t.Parallel()
			r := startRedis(t, parts.RedisOptions{})
			c, lines := connectedTo(t, Options{URLs: urlOf("redis", r.Address())})
			must.Do(t, c.patiently())
			r.Kill()
			timed := newPace(t)
			for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if !traffic {
					continue
				}
				if err := timed.works(c); !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("during the outage: %v", err)
				}
			}
			must.Do(t, r.Restart(soon(t)))
			begun := time.Now()
			if traffic {
				await(t, "a command", c.works)
				t.Logf("commands succeed %v after the restart", time.Since(begun))
			}
			await(t, "the log", func() error {
				return lines.has("redis connected", "redis is not reachable", "redis is reachable again")
			})
			t.Logf("reconnected %v after the restart", time.Since(begun))
			if err := c.patiently(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The test runs beside no other test: a machine that starts clusters may take seconds for nothing.
func TestStoppedServerIsDisconnectedAndReconnected(t *testing.T) {
	r := startRedis(t, parts.RedisOptions{})
	c, lines := connectedTo(t, Options{URLs: urlOf("redis", r.Address())})
	must.Do(t, c.patiently())
	must.Do(t, r.Pause(soon(t)))
	if !c.Steady() {
		t.Error("a connection is being made before anything failed")
	}
	begun, failed, unavailable := time.Now(), 0, time.Duration(0)
	var slowest time.Duration
	for unavailable == 0 {
		at := time.Now()
		err := c.works()
		slowest = max(slowest, time.Since(at))
		switch {
		case err == nil:
			t.Fatal("a stopped server answers")
		case errors.Is(err, ErrUnavailable):
			unavailable = time.Since(begun)
		case time.Since(begun) > 3500*time.Millisecond: // rueidis by itself closes the connection after 4 s
			t.Fatal("the connection is not closed")
		default:
			failed++
		}
		time.Sleep(time.Millisecond)
	}
	if c.Steady() {
		t.Error("no connection is being made in place of the closed one")
	}
	must.Do(t, r.Continue())
	begun = time.Now()
	await(t, "a command", c.works)
	back := time.Since(begun)
	await(t, "the connection", func() error {
		if !c.Steady() {
			return errors.New("a connection is being made")
		}
		return nil
	})
	applied := must.Get(c.command(5*time.Second, "GET", "{connection}"))(t)
	t.Logf("connection closed after %v; commands failed after %v at most; commands succeed %v after the server resumed; %s of %d were applied",
		unavailable, slowest, back, applied, failed)
	await(t, "the log", func() error {
		return lines.has("redis connected", "redis is not reachable", "redis is reachable again")
	})
}

func TestCommandThatTimesOutCostsNoConnection(t *testing.T) {
	r := startRedis(t, parts.RedisOptions{})
	c, _ := connectedTo(t, Options{URLs: urlOf("redis", r.Address())})
	id := must.Get(c.command(5*time.Second, "CLIENT", "ID"))(t)
	do(t, []*parts.Redis{r}, "CLIENT", "PAUSE", "600000", "WRITE")
	begun := time.Now()
	if err := c.works(); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) {
		t.Errorf("during the pause: %v", err)
	}
	t.Logf("timeout after %v", time.Since(begun))
	do(t, []*parts.Redis{r}, "CLIENT", "UNPAUSE")
	await(t, "a command", c.works)
	if again, err := c.command(5*time.Second, "CLIENT", "ID"); err != nil || again != id {
		t.Errorf("connection %s became %s, %v", id, again, err)
	}
}

func TestWrongPasswordIsLoggedOnceAndRetried(t *testing.T) {
	r := startRedis(t, parts.RedisOptions{
		Username: "all", Password: "x", Users: []string{"weir on >right ~* &* +@all"},
	})
	c, lines, err := attempt(t, Options{URLs: []string{"redis://weir:wrong@" + r.Address()}})
	lines.ignored = regexp.MustCompile(slow)
	for range 2 {
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("got %v", err)
		}
		err = c.Await(soon(t))
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
	must.Get(r.Do(soon(t), "ACL", "SETUSER", "weir", ">wrong"))(t)
	await(t, "a command", c.works)
	if err := lines.has("WRONGPASS", "redis connected"); err != nil {
		t.Error(err)
	}
}

func TestUserThatMayNotAskForTheVersionIsServed(t *testing.T) {
	r := startRedis(t, parts.RedisOptions{
		Username: "all", Password: "x", Users: []string{"weir on >secret ~* &* +@all -info"},
	})
	c, lines := connectedTo(t, Options{URLs: []string{"redis://weir:secret@" + r.Address()}})
	if err := c.patiently(); err != nil {
		t.Error(err)
	}
	_ = c.Report(context.DeadlineExceeded) // makes Conn inquire again
	must.Do(t, r.Restart(soon(t)))
	await(t, "a command", c.works)
	text := strings.Join(lines.Lines(), "\n")
	if strings.Count(text, "redis does not say its version") != 1 || !strings.Contains(text, "version=unknown") {
		t.Errorf("log:\n%s", text)
	}
}

func TestTopologyOtherThanTheURLsIsRefused(t *testing.T) {
	t.Parallel()
	cluster := steadyCluster(t, parts.RedisOptions{})
	s := started(t, parts.StartSentinels, parts.SentinelOptions{})
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
			_, lines, err := attempt(t, Options{URLs: test.urls})
			lines.ignored = regexp.MustCompile(slow)
			if !errors.Is(err, ErrTopology) || !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if err := lines.has("redis is not reachable"); err != nil {
				t.Error(err)
			}
		})
	}
	_, _, err := attempt(t, Options{URLs: []string{"redis-sentinel://" + s.Addresses()[0] + "/nobody"}})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "No such master with that name") {
		t.Errorf("an unknown primary: %v", err)
	}
}

func TestClientIsMadeAnewWhenNothingSucceeds(t *testing.T) {
	r := startRedis(t, parts.RedisOptions{})
	c, lines := connectedTo(t, Options{URLs: urlOf("redis", r.Address())})
	old := must.Get(c.Client())(t)
	readOnly := old.Do(soon(t), old.B().Arbitrary("EVAL", "return redis.error_reply('READONLY it is a replica')", "0").Build()).Error()
	c.failing.Store(time.Now().Add(-remakeAfter - time.Second).UnixNano())
	_ = c.Report(old.Do(soon(t), old.B().Arbitrary("NONSENSE").Build()).Error()) // an answer
	if c.failing.Load() != 0 {
		t.Error("an error of Redis about a command counts as a failure")
	}
	c.failing.Store(time.Now().Add(-remakeAfter - time.Second).UnixNano())
	_ = c.Report(readOnly)
	await(t, "another client", func() error {
		client, err := c.Client()
		if err == nil && client == old {
			err = errors.New("still the old client")
		}
		return err
	})
	if err := c.patiently(); err != nil {
		t.Error(err)
	}
	if err := old.Do(soon(t), old.B().Ping().Build()).Error(); !errors.Is(err, rueidis.ErrClosing) {
		await(t, "the old client to be closed", func() error {
			if err := old.Do(soon(t), old.B().Ping().Build()).Error(); !errors.Is(c.Report(err), ErrUnavailable) {
				return fmt.Errorf("the old client: %w", err)
			}
			return nil
		})
	}
	if err := lines.has("redis connected"); err != nil {
		t.Error(err)
	}
	must.Get(r.Do(soon(t), "PING"))(t)
	_ = c.Report(readOnly)
	if c.failing.Load() == 0 {
		t.Error("an error of Redis about its role does not count as a failure")
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
	t.Parallel()
	running := goroutines(t)
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t) // the kernel accepts connections, and nobody answers
	defer silent.Close()
	address := silent.Addr().String()
	cluster := steadyCluster(t, parts.RedisOptions{}).Addresses()
	for _, test := range []struct {
		name string
		urls []string
		wait bool
	}{
		{"connected", urlOf("redis", startRedis(t, parts.RedisOptions{}).Address()), true},
		{"cluster", urlOf("redis-cluster", cluster...), true},
		{"connecting", urlOf("redis", address), false},
		{"connecting_cluster", urlOf("redis-cluster", address, cluster[0]), false},
		{"connecting_sentinel", []string{"redis-sentinel://" + address + "/x"}, false},
		{"failed", urlOf("redis", address), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, _ := connecting(t, Options{URLs: test.urls})
			if test.wait {
				_ = c.Await(soon(t)) // some targets fail
			}
			begun := time.Now()
			c.Close()
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("Close took %v", took)
			}
			if _, err := c.Client(); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errClosed) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
	// rueidis closes the connections to a removed node some seconds later.
	await(t, "goroutines to end", func() error {
		_, stacks := running()
		for _, stack := range stacks {
			if strings.Contains(stack, "rueidis") || strings.Contains(stack, "internal/redis.(*") {
				return errors.New(stack)
			}
		}
		return nil
	})
}
