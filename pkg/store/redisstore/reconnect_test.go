package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/test/parts"
)

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
	text := strings.Join(lines.Lines(), "\n")
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
