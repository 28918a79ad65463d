package wire

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
)

// most is the bound of these tests, in bytes, and one is the bytes of one request.
const (
	most = 1 << 20
	one  = 12 << 10
)

// client is a connection with an account.
type client struct {
	*Account
	far      net.Conn
	requests int64
	taken    uint64
}

func newBytes() (*Bytes, *logtest.Log) {
	log := new(logtest.Log)
	return NewBytes(most, slog.New(slog.NewTextHandler(log, nil))), log
}

// exceeded checks that the log names bytes above the bound that they exceed.
func exceeded(t *testing.T, log *logtest.Log, bound int64) {
	t.Helper()
	var bytes, of int64
	_, figures, _ := strings.Cut(log.String(), "bytes_in_flight=")
	if _, err := fmt.Sscanf(figures, "%d bound=%d", &bytes, &of); err != nil {
		t.Fatalf("%v in the log: %s", err, log)
	}
	if bytes <= bound || of != bound {
		t.Errorf("want more than %d bytes, and that bound: %s", bound, log)
	}
}

func connect(t *testing.T, b *Bytes) *client {
	t.Helper()
	far, near := net.Pipe()
	c := &client{Account: b.Open(near), far: far}
	t.Cleanup(func() { _, _ = far.Close(), near.Close(); c.Close() })
	return c
}

// ask begins so many requests.
func (c *client) ask(n int64) { c.requests += n; c.report() }

// answer ends so many requests with answers.
func (c *client) answer(n int64) { c.requests -= n; c.taken += uint64(n); c.report() }

// fail ends so many requests without answers.
func (c *client) fail(n int64) { c.requests -= n; c.report() }

func (c *client) report() { c.Set(one*c.requests, int(c.requests), c.taken) }

// ended reports whether the bound has ended the connection.
func (c *client) ended() bool {
	_ = c.far.SetReadDeadline(time.Now().Add(time.Nanosecond))
	_, err := c.far.Read(make([]byte, 1))
	return err == io.EOF //nolint:errorlint // net.Pipe wraps no end
}

func TestBytesCountUntilTheEndOfTheirConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBytes()
		first, second := connect(t, b), connect(t, b)
		first.ask(2)
		second.ask(3)
		if got := b.Stats(); got.Bytes != 5*one || got.Streams != 5 || got.MaxBytes != most {
			t.Errorf("got %+v, want 5 streams", got)
		}
		first.answer(1)
		second.Close()
		second.Close()
		second.ask(9) // a late report
		synctest.Wait()
		if got := b.Stats(); got.Bytes != one || got.Streams != 1 {
			t.Errorf("got %+v, want 1 stream", got)
		}
	})
}

func TestAtTheBoundTheConnectionWithTheMostAndOldestBytesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, log := newBytes()
		honest, greedy := connect(t, b), connect(t, b)
		greedy.ask(30)
		time.Sleep(5 * time.Second)
		honest.ask(40) // more, but just now
		if greedy.ended() || honest.ended() {
			t.Fatal("a connection ended below the bound")
		}
		honest.ask(20)
		if !greedy.ended() || honest.ended() {
			t.Errorf("ended: greedy %t, honest %t; want the greedy one alone", greedy.ended(), honest.ended())
		}
		if got := b.Stats(); got.Bytes > most || got.Ended["held_most"] != 1 {
			t.Errorf("got %+v, want at most %d bytes and one connection ended", got, most)
		}
		if !strings.Contains(log.String(), "reason=held_most") {
			t.Errorf("the log does not say so: %s", log)
		}
		exceeded(t, log, most)
		greedy.Ended(SlowMessage) // by its server, which sees the end
		honest.Ended(SlowMessage)
		if got := b.Stats().Ended["slow_message"]; got != 1 {
			t.Errorf("slow messages: got %d, want the one of the honest connection", got)
		}
	})
}

func TestWhenCrowdedAConnectionWithMoreThanItsShareIsRefused(t *testing.T) {
	b, log := newBytes()
	honest, greedy := connect(t, b), connect(t, b)
	honest.ask(1)
	for greedy.ask(1); !b.Crowded(); greedy.ask(1) {
		if greedy.held.Load() > most/4*3 {
			t.Fatal("three quarters are in use")
		}
	}
	if !b.Admits(honest.Account) || b.Admits(greedy.Account) {
		t.Error("want the honest one admitted and the greedy one refused")
	}
	if b.Stats().Refused != 1 || !strings.Contains(log.String(), "requests are refused") {
		t.Errorf("got %+v, log %s", b.Stats(), log)
	}
	exceeded(t, log, most/4*3)
	greedy.answer(greedy.requests / 2)
	if b.Crowded() {
		t.Error("there is room again")
	}
}

// Large requests of other clients must not end the connection of a client that buffers little.
func TestLargeRequestsOfOthersEndNoModestConnection(t *testing.T) {
	b, _ := newBytes()
	modest, greedy := connect(t, b), connect(t, b)
	modest.ask(1)
	for range takenPart {
		if _, ok := b.Take(t.Context(), most/takenPart/takenPart); !ok {
			t.Fatal("a large request was refused")
		}
	}
	for range 100 {
		greedy.ask(1)
	}
	if !greedy.ended() || modest.ended() {
		t.Errorf("ended: greedy %t, modest %t; want the greedy one alone", greedy.ended(), modest.ended())
	}
	if got := b.Stats().Bytes; got > most {
		t.Errorf("got %d bytes, want at most %d", got, most)
	}
}

func TestTakesWaitForRoomAndAreRefusedAfterSomeSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, log := newBytes()
		taken, ok := b.Take(t.Context(), most) // more than all Takes may have
		if !ok || taken != most/takenPart {
			t.Fatalf("got %d, %t; want a quarter of the bound", taken, ok)
		}
		begun := time.Now()
		if _, ok := b.Take(t.Context(), 1); ok || time.Since(begun) != BudgetWait || b.Stats().Refused != 1 {
			t.Errorf("without room: got %t after %v, want a refusal after %v", ok, time.Since(begun), BudgetWait)
		}
		if want := fmt.Sprintf("bytes_of_request=1 bound=%d max_bytes_in_flight=%d", most/takenPart, most); !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s: %s", want, log)
		}
		time.AfterFunc(time.Second, func() { b.Give(taken) })
		begun = time.Now()
		if _, ok := b.Take(t.Context(), 1); !ok || time.Since(begun) != time.Second {
			t.Errorf("with room after a second: got %t after %v", ok, time.Since(begun))
		}
		b.Give(1)
		if got := b.Stats().Bytes; got != 0 {
			t.Errorf("afterwards: %d bytes", got)
		}
	})
}

// A client that has taken many answers has more bytes than each of many hostile ones, while its
// requests wait behind theirs.
func TestTheBoundEndsTheConnectionsWithoutAHistoryFirst(t *testing.T) {
	b, _ := newBytes()
	honest := connect(t, b)
	for range 50 {
		honest.ask(1)
		honest.answer(1)
	}
	honest.ask(10)
	for range 30 {
		hostile := connect(t, b)
		for range 6 {
			hostile.ask(2)
			hostile.fail(1) // an error, or a reset, is no history
		}
	}
	if !b.Crowded() || !b.Admits(honest.Account) {
		t.Errorf("with %d bytes an honest client with %d of them is refused; its share is %d", b.Stats().Bytes, honest.held.Load(), b.share())
	}
	if honest.ended() {
		t.Error("the honest client's connection was ended, though hostile ones without a history were open")
	}
	if b.Stats().Ended["held_most"] == 0 {
		t.Error("no connection was ended: the test did not reach the bound")
	}
}

// Requests that stay open, such as health Watches, must not keep the bound crowded for ever.
func TestOldConnectionsEndWhileTheBoundStaysCrowded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBytes()
		few, busy := connect(t, b), connect(t, b)
		few.ask(1) // an honest health check
		var watching []*client
		for !b.Crowded() {
			c := connect(t, b)
			c.ask(5)
			watching = append(watching, c)
		}
		gone := make(map[*client]bool)
		ended := func() int {
			for _, c := range watching {
				if c.ended() {
					gone[c] = true
					c.Close() // as the server does
				}
			}
			synctest.Wait()
			return len(gone)
		}
		for range 9 { // an answer each second
			busy.ask(1)
			time.Sleep(time.Second)
			busy.answer(1)
		}
		if n := ended(); n != 0 || !b.Crowded() {
			t.Errorf("before their bytes were old: %d connections ended, crowded %t", n, b.Crowded())
		}
		time.Sleep(3 * time.Second)
		before := ended()
		if b.Crowded() || before == 0 || before == len(watching) {
			t.Errorf("with %d bytes: crowded %t, %d of %d connections ended; want some, until there is room",
				b.Stats().Bytes, b.Crowded(), before, len(watching))
		}
		time.Sleep(time.Hour)
		if n := ended(); n != before || few.ended() || busy.ended() {
			t.Errorf("afterwards: %d more ended, the one with one stream %t, the one with answers %t; want none", n-before, few.ended(), busy.ended())
		}
		for !b.Crowded() {
			connect(t, b).ask(8) // young bytes
		}
		time.Sleep(5 * time.Second)
		if few.ended() || !b.Crowded() {
			t.Errorf("beside a flood of young bytes: ended %t, want the honest health check open", few.ended())
		}
	})
}

// A client that took a million answers long ago may have no more bytes than another one.
func TestTheHistoryOfAConnectionFades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBytes()
		old, honest := connect(t, b), connect(t, b)
		old.taken = 1_000_000
		old.report()
		time.Sleep(2 * time.Minute)
		for range 10 {
			honest.ask(1)
			honest.answer(1)
		}
		for honest.ask(1); !b.Crowded(); {
			old.ask(1)
		}
		if !b.Admits(honest.Account) || b.Admits(old.Account) {
			t.Errorf("admits: the client of now %t, the client of two minutes ago %t; want the first alone", b.Admits(honest.Account), b.Admits(old.Account))
		}
		for !old.ended() && !honest.ended() {
			old.ask(1)
			honest.ask(1)
		}
		if honest.ended() {
			t.Error("the connection that takes its answers now ended before the other one")
		}
	})
}

// Another processor may give the bytes back at once, so one of many ends must show them.
func TestBytesCountUntilTheGoroutinesOfAConnectionHadATurn(t *testing.T) {
	for range 100 {
		var crowded bool
		synctest.Test(t, func(t *testing.T) {
			b, _ := newBytes()
			greedy := connect(t, b)
			for !b.Crowded() {
				greedy.ask(1)
			}
			greedy.Close()
			crowded = b.Crowded()
			synctest.Wait()
			if b.Crowded() {
				t.Error("the bytes were never given back")
			}
		})
		if crowded {
			return
		}
	}
	t.Error("the bytes of connections were given back before their goroutines had a turn")
}

func BenchmarkSet(b *testing.B) {
	bound, _ := newBytes()
	far, near := net.Pipe()
	defer far.Close()
	defer near.Close()
	a := bound.Open(near)
	defer a.Close()
	b.ReportAllocs()
	var answers uint64
	for b.Loop() {
		answers++
		a.Set(one, 1, answers)
	}
}
