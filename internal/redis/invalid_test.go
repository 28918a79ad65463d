package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
)

// inChild is set in the process that a test starts for a case that could end the process.
const inChild = "WEIR_REDISCONN_CHILD"

// TestInvalidReplyIsAnOutage: after an invalid reply the process lives, commands fail as in an
// outage, and Redis is used again once its replies are valid.
func TestInvalidReplyIsAnOutage(t *testing.T) {
	t.Parallel()
	const loud = "%2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:3\r\n"
	for _, test := range []struct{ name, command, reply string }{
		{"one_too_many", "INCR", ":1\r\n:1\r\n"},
		{"negative_length", "INCR", "$-5\r\n"},
		{"huge_array", "INCR", "*2147483647\r\n"},
		{"huge_text", "INCR", "$9223372036854775807\r\n"},
		{"endless_nesting", "INCR", strings.Repeat("*1\r\n", 1<<20)},
		{"endless_line", "INCR", "+" + strings.Repeat("a", 1<<20)},
		{"chunks_of_negative_length", "INCR", "$?\r\n;-5\r\n"},
		{"subscription_without_command", "INCR", ">3\r\n+subscribe\r\n+a\r\n:1\r\n"},
		{"one_too_many_at_login", "HELLO", loud + "+OK\r\n"},
		{"negative_length_at_login", "HELLO", "%-1\r\n"},
		{"huge_array_at_login", "HELLO", "*2147483647\r\n"},
		{"one_too_many_at_ping", "PING", "+PONG\r\n+PONG\r\n"},
		{"web_server", "PING", "HTTP/1.1 400 Bad Request\r\n\r\n"},
		{"negative_length_in_version", "INFO", "$-2\r\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if os.Getenv(inChild) != "" {
				invalidReplyIsAnOutage(t, test.command, test.reply)
				return
			}
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInvalidReplyIsAnOutage$/^"+test.name+"$", "-test.v") //nolint:gosec // this test itself
			child.Env = append(os.Environ(), inChild+"=1")
			if output, err := child.CombinedOutput(); err != nil || !bytes.Contains(output, []byte("--- PASS: TestInvalidReplyIsAnOutage/"+test.name)) {
				t.Errorf("%v: %.2000s", err, output)
			}
		})
	}
}

// invalidReplyIsAnOutage runs one case.
func invalidReplyIsAnOutage(t *testing.T, command, reply string) {
	t.Helper()
	f := newFakeRedis(t, "7.0.0")
	node := f.listener.Addr().String()
	c, lines := connectedTo(t, Options{URLs: urlOf("redis", node)})
	must.Do(t, c.patiently())
	invalid := func(_ net.Conn, words []string) string {
		if words[0] == command {
			return reply
		}
		return ""
	}
	f.answer.Store(&invalid)
	if command != "INCR" {
		f.hangUp()
	}
	await(t, "an invalid reply", func() error {
		if err := c.works(); err != nil && !errors.Is(err, ErrUnavailable) && !errors.Is(err, os.ErrDeadlineExceeded) && !strings.Contains(err.Error(), "deadline") {
			t.Fatalf("not an outage: %v", err)
		}
		if n := c.InvalidReplies(); n < 2 {
			return fmt.Errorf("%d invalid replies", n)
		}
		return nil
	})
	f.answer.Store(nil)
	await(t, "a command", c.works)
	// The connection that counted the first invalid reply may log later than another one counts the
	// second.
	await(t, "a log line", func() error {
		if !strings.Contains(lines.String(), "redis sent an invalid reply") {
			return errors.New("no line about an invalid reply")
		}
		return nil
	})
	if n := strings.Count(lines.String(), "redis sent an invalid reply"); n != 1 {
		t.Errorf("%d log lines about invalid replies, want 1", n)
	}
	before := c.InvalidReplies()
	for range 100 {
		if err := c.patiently(); err != nil && (!isSlow(err) || c.InvalidReplies() > before) {
			t.Fatalf("after the invalid replies: %v", err)
		}
	}
}

func TestInvalidRepliesAreLoggedOnceAMinuteForEachNode(t *testing.T) {
	t.Parallel()
	var i invalidReplies
	begun := time.Now()
	for _, step := range []struct {
		after time.Duration
		node  string
		log   bool
	}{
		{0, "a", true},
		{time.Second, "a", false},
		{2 * time.Second, "b", true},
		{59 * time.Second, "a", false},
		{time.Minute, "a", true},
		{time.Minute, "b", false},
		{2 * time.Minute, "c", true},
	} {
		if log := i.add(step.node, begun.Add(step.after)); log != step.log {
			t.Errorf("%s after %v: logged %t, want %t", step.node, step.after, log, step.log)
		}
	}
	if i.total != 7 || len(i.logged) != 1 {
		t.Errorf("%d replies, %d nodes kept; want 7 and 1", i.total, len(i.logged))
	}
}

// TestAReplyTooManyOnABusyConnectionIsFound: the server always owes an answer, so that no reply
// comes without a command.
func TestAReplyTooManyOnABusyConnectionIsFound(t *testing.T) {
	t.Parallel()
	f := newFakeRedis(t, "7.0.0")
	c, lines := connectedTo(t, Options{URLs: urlOf("redis", f.listener.Addr().String())})
	var mu sync.Mutex // guards the rest
	var extra bool
	owed := map[net.Conn]string{}
	text := func(word string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(word), word) }
	answer := func(from net.Conn, words []string) string {
		mu.Lock()
		defer mu.Unlock()
		before := owed[from]
		delete(owed, from)
		switch {
		case words[0] == "PING" && len(words) == 2:
			return before + text(words[1])
		case words[0] != "GET" && before != "": // INFO, after a reconnect
			return before + "-ERR busy\r\n"
		case words[0] != "GET":
			return ""
		}
		owed[from] = text(words[1])
		if before == "" {
			before = none
		}
		if extra {
			extra = false
			before += text("extra")
		}
		return before
	}
	f.answer.Store(&answer)
	ctx, stop := context.WithCancel(t.Context())
	var wrong, right atomic.Int64
	var traffic sync.WaitGroup
	for i := range 8 {
		traffic.Go(func() {
			for key := fmt.Sprintf("key%d", i); ctx.Err() == nil; {
				switch got, err := c.command(time.Second, "GET", key); {
				case err != nil:
				case got == key:
					right.Add(1)
				default:
					wrong.Add(1)
				}
			}
		})
	}
	more := func() error { // 1000 right answers
		if right.Load() < 1000 {
			return fmt.Errorf("%d right answers", right.Load())
		}
		return nil
	}
	await(t, "right answers", more)
	if n := wrong.Load(); n > 0 || c.InvalidReplies() > 0 {
		t.Errorf("%d wrong answers and %d invalid replies before the fault", n, c.InvalidReplies())
	}
	mu.Lock()
	extra = true
	mu.Unlock()
	await(t, "an invalid reply", func() error {
		if c.InvalidReplies() == 0 {
			return fmt.Errorf("%d wrong answers", wrong.Load())
		}
		return nil
	})
	before := wrong.Load()
	right.Store(0)
	await(t, "right answers again", more)
	t.Logf("%d wrong answers", before)
	if before == 0 || wrong.Load() > before+8 {
		t.Errorf("%d wrong answers while the replies were shifted, %d at the end; want some, and no more", before, wrong.Load())
	}
	// When a busy machine breaks the connection, the reply too many comes while no command waits.
	if text := lines.String(); !strings.Contains(text, "the answer to another command") && !strings.Contains(text, "no answer within") {
		t.Error("the log does not have the reason")
	}
	stop()
	f.answer.Store(nil)
	f.hangUp()
	traffic.Wait()
}
