package redis

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestVersionsThatAreSupported(t *testing.T) {
	for _, test := range []struct {
		info, text, mode string
		supported        bool
	}{
		{"redis_version:6.0.16\r\nredis_mode:standalone\r\n", "redis 6.0.16", "standalone", false},
		{"redis_version:5.9.9\r\n", "redis 5.9.9", "", false},
		{"redis_version:6.1.999\r\n", "redis 6.1.999", "", false},
		{"# Server\r\nredis_version:6.2.0\r\nredis_mode:cluster\r\n", "redis 6.2.0", "cluster", true},
		{"redis_version:7.0.15\n", "redis 7.0.15", "", true},
		{"redis_version:10.0\n", "redis 10.0", "", true},
		{"redis_version:7\n", "redis 7", "", true},
		{"redis_version:255.255.255\n", "redis 255.255.255", "", true},
		{"redis_version:unstable\n", "redis unstable", "", true},
		{"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:7.2.7\r\nredis_mode:standalone\r\n", "valkey 7.2.7", "standalone", true},
		{"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nserver_mode:cluster\r\n", "valkey 8.0.1", "cluster", true},
		{"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:7.1.0\r\n", "valkey 7.1.0", "", false},
		{"redis_version:7.4.0\r\ndragonfly_version:df-v1.2\r\nredis_mode:standalone\r\n", "redis 7.4.0", "standalone", true},
		{"redis_version:6.3.4\r\nserver_name:keydb\r\n", "redis 6.3.4", "", true},
		{"", "unknown", "", true},
	} {
		v, mode := parseInfo(fieldsOf(test.info))
		if v.String() != test.text || mode != test.mode || v.supported() != test.supported {
			t.Errorf("%q: got %v, %q, supported %t", test.info, v, mode, v.supported())
		}
	}
}

// fakeRedis is a server on loopback that answers the first commands of a connection.
type fakeRedis struct {
	listener net.Listener
	version  atomic.Pointer[string]                                     // in the answer to INFO
	login    atomic.Int64                                               // nanoseconds of a login
	accepted atomic.Int64                                               // connections
	answer   atomic.Pointer[func(from net.Conn, words []string) string] // to a command; nil or "": as the server is
	mu       sync.Mutex                                                 // guards open
	open     map[net.Conn]struct{}
}

// none as the answer of fakeRedis.answer is no answer.
const none = "none"

func newFakeRedis(t *testing.T, version string) *fakeRedis {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	f := &fakeRedis{listener: listener, open: map[net.Conn]struct{}{}}
	f.version.Store(&version)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.accepted.Add(1)
			f.mu.Lock()
			f.open[conn] = struct{}{}
			f.mu.Unlock()
			running.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		f.hangUp()
		running.Wait()
	})
	return f
}

// hangUp closes all connections.
func (f *fakeRedis) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.open {
		conn.Close()
	}
	clear(f.open)
}

// serve answers the commands of one connection.
func (f *fakeRedis) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		answer := "+OK\r\n"
		switch strings.ToUpper(words[0]) {
		case "PING":
			answer = "+PONG\r\n"
			if len(words) > 1 { // of keepOrder, each second
				answer = fmt.Sprintf("$%d\r\n%s\r\n", len(words[1]), words[1])
			}
		case "INCR":
			answer = ":1\r\n"
		case "HELLO":
			for begun := time.Now(); time.Since(begun) < time.Duration(f.login.Load()); {
				time.Sleep(time.Millisecond)
			}
			answer = "%2\r\n$7\r\nversion\r\n$5\r\n6.0.0\r\n$5\r\nproto\r\n:3\r\n"
		case "INFO":
			text := fmt.Sprintf("# Server\r\nredis_version:%s\r\nredis_mode:standalone\r\n", *f.version.Load())
			answer = fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
		}
		if own := f.answer.Load(); own != nil {
			answer = strings.TrimSuffix(cmp.Or((*own)(conn, words), answer), none)
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// readCommand reads one command, an array of texts.
func readCommand(in *bufio.Reader) ([]string, error) {
	count, err := readNumber(in, "*")
	if err != nil {
		return nil, err
	}
	words := make([]string, count)
	for i := range words {
		size, err := readNumber(in, "$")
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}

func readNumber(in *bufio.Reader, kind string) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(line, kind), "\r\n"))
}

func TestServerTooOldIsRefusedUntilItIsNot(t *testing.T) {
	t.Parallel()
	f := newFakeRedis(t, "6.0.16")
	c, lines, err := attempt(t, Options{URLs: urlOf("redis", f.listener.Addr().String())})
	want := "redis 6.0.16 at " + f.listener.Addr().String() + ": Weir needs Redis >= 6.2 or Valkey >= 7.2"
	if !errors.Is(err, ErrVersion) || !errors.Is(err, ErrUnavailable) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	// A command may be under way when the first server closes the connection, and a busy machine may
	// answer late.
	lines.ignored = regexp.MustCompile(`"redis is not reachable".*(EOF|broken pipe|connection reset by peer|` + slow + `)|"redis is reachable again"`)
	if err := c.works(); !errors.Is(err, ErrVersion) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	newer, older := "6.2.0", "6.0.16"
	f.version.Store(&newer)
	await(t, "a command", c.works)
	if err := lines.has("6.0.16", "redis connected"); err != nil {
		t.Error(err)
	}

	// Another server takes its place.
	f.version.Store(&older)
	f.hangUp()
	await(t, "the refusal", func() error {
		if err := c.works(); !errors.Is(err, ErrVersion) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	await(t, "the log", func() error { return lines.has("6.0.16", "redis connected", "6.0.16") })
}

func TestLoginMayTakeLongerThanACommand(t *testing.T) {
	f := newFakeRedis(t, "7.0.0")
	c, _ := connectedTo(t, Options{URLs: urlOf("redis", f.listener.Addr().String())})
	f.login.Store(int64(200 * time.Millisecond))
	f.hangUp()
	begun, before := time.Now(), f.accepted.Load()
	await(t, "a command", c.works)
	if n := f.accepted.Load() - before; n > 5+int64(time.Since(begun)/timeout) { // one for each command would be 20
		t.Errorf("it took %d connections", n)
	}
}

func TestServerThatIsAwayIsNotHammered(t *testing.T) {
	t.Parallel()
	f := newFakeRedis(t, "7.0.0")
	c, _ := connectedTo(t, Options{URLs: urlOf("redis", f.listener.Addr().String())})
	f.login.Store(int64(time.Hour)) // the cleanup ends the login
	t.Cleanup(func() { f.login.Store(0) })
	f.hangUp()
	begun, before := time.Now(), f.accepted.Load()
	commands := 0
	for ; time.Since(begun) < 2*time.Second; commands++ {
		_ = c.works() // fails
	}
	if n := f.accepted.Load() - before; n > 4+int64(2*time.Since(begun)/time.Second) {
		t.Errorf("%d commands made %d connections", commands, n)
	}
}
