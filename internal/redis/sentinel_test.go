package redis

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
)

// fakePrimary is a primary that counts its commands.
type fakePrimary struct {
	*fakeRedis

	pings, commands, roles atomic.Int64  // PING with a number, one each second; INCR; ROLE
	refuses                atomic.Bool   // each connection, at once
	asked                  func()        // is called at each INFO; may be nil
	role                   chan struct{} // ROLE is answered when role is closed; nil: at once
}

func newFakePrimary(t *testing.T, asked func()) *fakePrimary {
	t.Helper()
	f := &fakePrimary{fakeRedis: newFakeRedis(t, "7.0.15"), asked: asked}
	answer := func(_ net.Conn, words []string) string {
		switch word := strings.ToUpper(words[0]); {
		case word == "ROLE":
			f.roles.Add(1)
			if f.role != nil {
				<-f.role
			}
			return "*1\r\n$6\r\nmaster\r\n"
		case word == "PING" && f.refuses.Load():
			return "-DENIED the server is away\r\n"
		case word == "PING" && len(words) > 1:
			f.pings.Add(1)
		case word == "INCR":
			f.commands.Add(1)
		case word == "INFO" && f.asked != nil:
			f.asked()
		}
		return ""
	}
	f.answer.Store(&answer)
	return f
}

func (f *fakePrimary) address() string { return f.listener.Addr().String() }

// newFakeSentinel returns the URL of a Sentinel that knows no other one. primary returns the
// address that the Sentinel names.
func newFakeSentinel(t *testing.T, primary func() string) []string {
	t.Helper()
	f := newFakeRedis(t, "7.0.15")
	answer := func(_ net.Conn, words []string) string {
		switch {
		case len(words) < 2 || words[0] != "SENTINEL":
			return ""
		case strings.EqualFold(words[1], "SENTINELS"):
			return "*0\r\n"
		}
		host, port, _ := net.SplitHostPort(primary())
		return fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
	}
	f.answer.Store(&answer)
	return []string{"redis-sentinel://" + f.listener.Addr().String() + "/weir"}
}

// awaitPrimary waits until commands go to a primary.
func awaitPrimary(t *testing.T, c *Conn, want *fakePrimary) {
	t.Helper()
	await(t, "a connection to the other primary", func() error {
		client, err := c.Client()
		if err != nil {
			return err
		}
		if _, is := client.Nodes()[want.address()]; !is {
			return errors.New("commands go to the first primary")
		}
		return nil
	})
}

// Sentinels that do not agree can make two replicas primaries. A Sentinel then names one of them,
// and a moment later the other one. The first one goes on to accept writes, and closes no
// connection. A ping each second shows how long Conn uses the first one.
func TestSentinelsThatNameAnotherPrimarySoonAreFollowed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	first, other := newFakePrimary(t, nil), newFakePrimary(t, nil)
	c, _ := connectedTo(t, Options{URLs: newFakeSentinel(t, func() string {
		if asked.Add(1) == 1 {
			return first.address()
		}
		return other.address()
	})})
	awaitPrimary(t, c, other)
	if n := first.pings.Load(); n > 2 {
		t.Errorf("the first primary got %d pings, one each second, before a Sentinel was asked again; want 2 at most", n)
	}
}

// A primary that was away comes back, often without data. Meanwhile the Sentinels may have made a
// replica the primary: then the old one gets no command. Or they do so a moment later.
func TestAPrimaryThatComesBackIsUsedOnlyIfTheSentinelsStillNameIt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		after int64         // questions to the Sentinel, since the primary is back, until the Sentinel names another one
		used  time.Duration // before the outage
		most  time.Duration // until commands go to the other one
	}{
		{"another one is the primary", 0, 0, 0},
		{"another one will be the primary", 1, unsettled, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var back atomic.Bool
			var asked, commands atomic.Int64
			other := newFakePrimary(t, nil)
			var old *fakePrimary
			old = newFakePrimary(t, func() { back.Store(commands.Load() > 0 && !old.refuses.Load()) })
			c, _ := connectedTo(t, Options{URLs: newFakeSentinel(t, func() string {
				if back.Load() && asked.Add(1) > test.after {
					return other.address()
				}
				return old.address()
			})})
			must.Do(t, c.patiently())
			commands.Store(old.commands.Load())
			time.Sleep(test.used)
			old.refuses.Store(true)
			old.hangUp()
			await(t, "the outage", func() error {
				if err := c.works(); err == nil || !strings.Contains(err.Error(), "the server is away") {
					return fmt.Errorf("a command ended with %w", err)
				}
				return nil
			})
			commands.Store(old.commands.Load())
			begun := time.Now()
			old.refuses.Store(false)
			await(t, "a command at the other primary", func() error {
				if err := c.works(); other.commands.Load() == 0 {
					return fmt.Errorf("there is none; the last error: %w", err)
				}
				return nil
			})
			took, n := time.Since(begun), old.commands.Load()-commands.Load()
			t.Logf("commands went to the other primary after %v, and %d to the old one", took, n)
			if test.most == 0 && n > 0 || test.most > 0 && took > test.most {
				t.Errorf("%d commands went to the old primary in %v; want none, or %v at most", n, took, test.most)
			}
		})
	}
}

// A new primary gets its counts back when Restarts has changed. A restart that is counted too early
// would give the counts to the old primary.
func TestARestartIsCountedWhenCommandsGoToTheNewServer(t *testing.T) {
	t.Parallel()
	first, other := newFakePrimary(t, nil), newFakePrimary(t, nil)
	other.role = make(chan struct{})
	other.version.Store(new("7.0.15\r\nrun_id:b"))
	first.version.Store(new("7.0.15\r\nrun_id:a"))
	var asked atomic.Int64
	c, _ := connectedTo(t, Options{URLs: newFakeSentinel(t, func() string {
		if asked.Add(1) == 1 {
			return first.address()
		}
		return other.address()
	})})
	await(t, "the question for the role, the last one", func() error {
		if other.roles.Load() == 0 {
			return errors.New("it has not come")
		}
		return nil
	})
	if n := c.Restarts(); n != 0 {
		t.Errorf("%d restarts are counted while commands go to the first primary", n)
	}
	close(other.role)
	awaitPrimary(t, c, other)
	if n := c.Restarts(); n != 1 {
		t.Errorf("%d restarts are counted when commands go to the other primary; want 1", n)
	}
}
