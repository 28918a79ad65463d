package parts

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// do sends a command and returns the answer as text.
func do(t *testing.T, r *Redis, args ...string) string {
	t.Helper()
	message, err := r.Do(Soon(t), args...)
	if err != nil {
		t.Fatal(err)
	}
	if message.IsNil() {
		return "(nil)"
	}
	if message.IsInt64() {
		n, err := message.ToInt64()
		if err != nil {
			t.Fatal(err)
		}
		return strconv.FormatInt(n, 10)
	}
	text, err := message.ToString()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestARedisAnswersOverTCPAndItsSocket(t *testing.T) {
	r := RedisFor(t, RedisOptions{})
	if got := do(t, r, "SET", "key", "value"); got != "OK" {
		t.Errorf("set: got %q, want OK", got)
	}
	if got := do(t, r, "GET", "nothing"); got != "(nil)" {
		t.Errorf("get of nothing: got %q, want nil", got)
	}
	if _, err := r.Do(Soon(t), "LPUSH", "key", "x"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("an error of Redis: got %v, want WRONGTYPE", err)
	}
	conn, err := net.Dial("unix", r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("GET key\r\n")); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64)
	n, err := conn.Read(buffer)
	if got, want := string(buffer[:n]), "$5\r\nvalue\r\n"; err != nil || got != want {
		t.Errorf("over the socket: got %q, %v; want %q", got, err, want)
	}
	if err := r.Stop(Soon(t)); err != nil {
		t.Error(err)
	}
	if r.Running() {
		t.Error("it runs after Stop")
	}
}

func TestARedisRestartsEmptyOnTheSamePort(t *testing.T) {
	r := RedisFor(t, RedisOptions{})
	before := r.Address()
	do(t, r, "SET", "key", "value")
	r.Kill()
	if _, err := r.Do(Soon(t), "PING"); err == nil {
		t.Error("it answers after Kill")
	}
	if err := r.Restart(Soon(t)); err != nil {
		t.Fatal(err)
	}
	if got := r.Address(); got != before {
		t.Errorf("address: got %s, want %s", got, before)
	}
	if got := do(t, r, "GET", "key"); got != "(nil)" {
		t.Errorf("key after a restart: got %q, want none", got)
	}
}

func TestAPausedRedisAnswersNobodyUntilItContinues(t *testing.T) {
	r := RedisFor(t, RedisOptions{})
	if err := r.Pause(Soon(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Do(ctx, "PING"); err == nil {
		t.Error("it answers while it is paused")
	}
	if !r.Running() {
		t.Error("a paused one has ended")
	}
	if err := r.Continue(); err != nil {
		t.Fatal(err)
	}
	if got := do(t, r, "PING"); got != "PONG" {
		t.Errorf("after it went on: got %q, want PONG", got)
	}
	if err := r.Pause(Soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(Soon(t)); err != nil {
		t.Errorf("stopping a paused one: %v", err)
	}
}

func TestFindRedisSaysInOneLineWhatIsMissing(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/nowhere/redis-server": "REDIS_SERVER=/nowhere/redis-server is not a program",
		"/bin/sh":               "REDIS_SERVER=/bin/sh is not a redis-server of 6.2 or newer",
	} {
		t.Setenv("REDIS_SERVER", path)
		_, err := FindRedis(Soon(t), root)
		if !errors.Is(err, ErrNoRedis) || !strings.HasPrefix(err.Error(), "no Redis: "+want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want ErrNoRedis: %s", err, want)
		}
	}
}

func TestWithoutARedisATestIsSkipped(t *testing.T) {
	t.Setenv("REDIS_SERVER", "/nowhere/redis-server")
	t.Setenv("WEIR_REQUIRE", "envoy")
	skipped := false
	t.Run("needs one", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		t.Errorf("it goes on with %q", NeedRedis(t, "../.."))
	})
	if !skipped {
		t.Error("the test was not skipped")
	}
}
