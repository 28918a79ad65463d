package parts

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// soon is how long anything real may take on a busy machine.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// startOne starts a Redis that the test's end kills.
func startOne(t *testing.T, options RedisOptions) *Redis {
	t.Helper()
	binary := NeedRedis(t, "../..")
	r, err := StartRedis(soon(t), binary, t.TempDir(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			t.Logf("Redis's last lines:\n%s", r.Tail(30))
		}
	})
	return r
}

// do sends a command and returns the answer as text.
func do(t *testing.T, r *Redis, args ...string) string {
	t.Helper()
	message, err := r.Do(soon(t), args...)
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
	r := startOne(t, RedisOptions{})
	if got := do(t, r, "SET", "key", "value"); got != "OK" {
		t.Errorf("set: got %q, want OK", got)
	}
	if got := do(t, r, "GET", "nothing"); got != "(nil)" {
		t.Errorf("get of nothing: got %q, want nil", got)
	}
	if _, err := r.Do(soon(t), "LPUSH", "key", "x"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
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
	if err := r.Stop(soon(t)); err != nil {
		t.Error(err)
	}
	if r.Running() {
		t.Error("it runs after Stop")
	}
}

func TestARedisRestartsEmptyOnTheSamePort(t *testing.T) {
	r := startOne(t, RedisOptions{})
	before := r.Address()
	do(t, r, "SET", "key", "value")
	r.Kill()
	if _, err := r.Do(soon(t), "PING"); err == nil {
		t.Error("it answers after Kill")
	}
	if err := r.Restart(soon(t)); err != nil {
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
	r := startOne(t, RedisOptions{})
	if err := r.Pause(soon(t)); err != nil {
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
	if err := r.Pause(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(soon(t)); err != nil {
		t.Errorf("stopping a paused one: %v", err)
	}
}

func TestATakenPortIsAnError(t *testing.T) {
	r := startOne(t, RedisOptions{})
	_, err := StartRedis(soon(t), NeedRedis(t, "../.."), t.TempDir(), RedisOptions{Port: r.Port()})
	if err == nil || !strings.Contains(err.Error(), "Address already in use") {
		t.Errorf("got %v, want that the address is in use", err)
	}
}

func TestAWrongConfigLineIsAnErrorThatShowsIt(t *testing.T) {
	_, err := StartRedis(soon(t), NeedRedis(t, "../.."), t.TempDir(), RedisOptions{Config: []string{"no-such-line yes"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-line") {
		t.Errorf("got %v, want no-such-line in it", err)
	}
}

func TestARedisWithTLSLetsInOnlyItsOwnClients(t *testing.T) {
	certificates, err := NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	others, err := NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := startOne(t, RedisOptions{
		TLS: certificates, Username: "admin", Password: "secret",
		Users: []string{"weir on >w ~weir:* +@all -@dangerous"},
	})
	if got := do(t, r, "ACL", "WHOAMI"); got != "admin" {
		t.Errorf("user: got %q, want admin", got)
	}
	for _, file := range []string{certificates.CA, certificates.ServerKey, certificates.ClientCert, certificates.ClientKey} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
	for name, change := range map[string]func(*rueidis.ClientOption){
		"plain text":                  func(o *rueidis.ClientOption) { o.TLSConfig = nil },
		"no certificate":              func(o *rueidis.ClientOption) { o.TLSConfig.Certificates = nil },
		"another authority's":         func(o *rueidis.ClientOption) { o.TLSConfig.Certificates = others.ClientConfig().Certificates },
		"server not trusted":          func(o *rueidis.ClientOption) { o.TLSConfig.RootCAs = others.ClientConfig().RootCAs },
		"wrong password":              func(o *rueidis.ClientOption) { o.Password = "wrong" },
		"no user":                     func(o *rueidis.ClientOption) { o.Username, o.Password = "", "" },
		"the default user's password": func(o *rueidis.ClientOption) { o.Username = "" },
	} {
		option := r.ClientOption()
		option.Dialer.Timeout = time.Second
		change(&option)
		client, err := rueidis.NewClient(option)
		if client != nil {
			defer client.Close()
		}
		if err == nil {
			err = client.Do(soon(t), client.B().Ping().Build()).Error()
		}
		if err == nil {
			t.Errorf("%s: got in", name)
		}
	}
	option := r.ClientOption()
	option.Username, option.Password = "weir", "w"
	client, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Do(soon(t), client.B().Set().Key("weir:a").Value("1").Build()).Error(); err != nil {
		t.Errorf("a key of its own: %v", err)
	}
	if err := client.Do(soon(t), client.B().Set().Key("a").Value("1").Build()).Error(); err == nil {
		t.Error("a key of others: allowed")
	}
}

func TestAReplicaFollowsItsPrimaryWithItsPassword(t *testing.T) {
	primary := startOne(t, RedisOptions{Password: "secret"})
	replica := startOne(t, RedisOptions{Password: "secret", ReplicaOf: primary.Address()})
	do(t, primary, "SET", "key", "value")
	err := poll(soon(t), "the copy", func() error {
		if got := do(t, replica, "GET", "key"); got != "value" {
			return errors.New("not there")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
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
		_, err := FindRedis(soon(t), root)
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
