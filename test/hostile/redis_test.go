package hostile

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// redisAttacks come from the Redis that keeps the counts, or from a machine between. Limits are
// then kept in this process.
func redisAttacks() []attack {
	row := func(name, how string, lies ...lie) attack {
		return attack{
			name: name, how: how, bound: "each reply is checked; nonsense ends the connection; `--on-store-error` decides",
			away: true, liar: func(t *testing.T) *liar { t.Helper(); return newLiar(t, lies...) }, run: func(a *assault) { a.liar.lying.Store(true); <-a.ctx.Done() },
		}
	}
	replace := func(text string) lie { return func([]byte, io.Writer) []byte { return []byte(text) } }
	return []attack{
		row("redis_replies_too_many", "the Redis adds a reply that nobody asked for", func(answer []byte, _ io.Writer) []byte { return append(bytes.Clone(answer), "+OK\r\n"...) }),
		row("redis_nonsense", "the Redis answers lengths below zero, beyond all memory and 100 000 levels deep, lines without end, and noise",
			replace("$-5\r\n"), replace("*-7\r\n"), replace("*2147483647\r\n"), replace("%2147483647\r\n"), replace("$2147483647\r\n"),
			replace("$9223372036854775807\r\n"), replace(strings.Repeat("*1\r\n", 100_000)), replace("\x00\xff\r\n"), replace("$x\r\n"),
			endless("+"+strings.Repeat("x", 64<<10)), endless("*65536\r\n"), noise),
		row("redis_pushes", "the Redis sends pushes without end", endless(strings.Repeat(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", 1000))),
		{
			name: "redis_slow", how: "the Redis answers after 50 ms", bound: "`--redis-timeout`", away: true,
			liar: func(t *testing.T) *liar { t.Helper(); return newLiar(t) },
			run:  func(a *assault) { a.liar.delay.Store(int64(50 * time.Millisecond)); <-a.ctx.Done() },
		},
	}
}

// A lie replaces an answer of Redis. A lie may also write without end, until the connection closes.
type lie func(answer []byte, to io.Writer) []byte

// endless is a lie that is told again and again.
func endless(text string) lie {
	return func(_ []byte, to io.Writer) []byte {
		for {
			if _, err := io.WriteString(to, text); err != nil {
				return nil
			}
		}
	}
}

func noise([]byte, io.Writer) []byte {
	some := make([]byte, 4096)
	_, _ = rand.Read(some) // never fails
	return some
}

// A liar stands between the program and a real Redis. A liar passes everything on until it lies,
// another lie on each connection.
type liar struct {
	address     string
	lies        []lie
	lying       atomic.Bool
	delay       atomic.Int64 // nanoseconds before each answer
	connections atomic.Int64
}

// newLiar starts a Redis and a liar before it, which end with the test.
func newLiar(t *testing.T, lies ...lie) *liar {
	t.Helper()
	redis := parts.RedisFor(t, parts.RedisOptions{})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	l := &liar{address: listener.Addr().String(), lies: lies}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go l.serve(conn, redis.Address())
		}
	}()
	return l
}

// serve passes one connection on to Redis, and tells one lie in place of an answer.
func (l *liar) serve(conn net.Conn, upstream string) {
	defer conn.Close()
	number := l.connections.Add(1)
	redis, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer redis.Close()
	go func() {
		defer redis.Close()
		_, _ = io.Copy(redis, conn)
	}()
	answer := make([]byte, 64<<10)
	for {
		n, err := redis.Read(answer)
		if err != nil {
			return
		}
		if delay := time.Duration(l.delay.Load()); delay > 0 {
			time.Sleep(delay)
		}
		text := answer[:n]
		if l.lying.Load() {
			text = l.lies[number%int64(len(l.lies))](text, conn)
		}
		if _, err := conn.Write(text); err != nil {
			return
		}
	}
}
