package lane

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
)

// newLane returns a lane for tests.
func newLane(tb testing.TB, change ...func(*Options)) *Lane {
	tb.Helper()
	o := Options{Path: testPath, MaxMessage: 64 << 10}
	for _, f := range change {
		f(&o)
	}
	l := must.Get(New(o))(tb)
	return l
}

// talk is a connection after the greeting, with a client.
type talk struct {
	*client
	conn    *Conn
	handler *handler
	now     int64
}

func newTalk(tb testing.TB, change ...func(*Options)) *talk {
	tb.Helper()
	h := new(handler)
	c := &talk{client: newClient(tb), conn: newLane(tb, change...).Open(start, h, nil, 0), handler: h, now: start}
	c.greet()
	must.Do(tb, c.conn.receiveAll(c.take(), c.now))
	c.conn.Output()
	return c
}

// send gives the server the bytes of the client, and returns the server's frames and the end of the
// connection.
func (c *talk) send() ([]string, error) {
	c.t.Helper()
	err := c.conn.receiveAll(c.take(), c.now)
	return c.read(c.conn.Output()), err
}

// expect gives the server the bytes of the client, and compares the server's frames.
func (c *talk) expect(want ...string) {
	c.t.Helper()
	got := must.Get(c.send())(c.t)
	if d := cmp.Diff(want, got); d != "" {
		c.t.Error(d)
	}
}

func (c *talk) window(id, n uint32) { c.must(c.framer.WriteWindowUpdate(id, n)) }

const okHeaders = " HEADERS :status=200 content-type=application/grpc"

// tick moves the clock. failure is the end of the connection.
func (c *talk) tick(by time.Duration, failure string, want ...string) {
	c.t.Helper()
	c.now += int64(by)
	err := c.conn.Tick(c.now)
	if err == nil && failure != "" || err != nil && !strings.HasSuffix(err.Error(), ": "+failure) {
		c.t.Errorf("got error %v, want %q", err, failure)
	}
	if d := cmp.Diff(want, c.read(c.conn.Output())); d != "" {
		c.t.Error(d)
	}
	if err == nil && c.conn.alive.due <= c.now {
		c.t.Errorf("the next Tick is due now: %d at %d", c.conn.alive.due, c.now)
	}
}

// receiveAll is Receive of all bytes. The output is in the machine.
func (c *Conn) receiveAll(chunk []byte, now int64) error {
	rest, err := c.Receive(chunk, now)
	for err == nil && len(rest) > 0 {
		sent := c.out
		c.out = nil
		rest, err = c.Receive(rest, now)
		c.out = append(sent, c.out...)
	}
	return err
}

// seeds returns the number of random conversations of a test: so many, or WEIR_LANE_SEEDS for a
// long run.
func seeds(tb testing.TB, usual uint64) uint64 {
	tb.Helper()
	text := os.Getenv("WEIR_LANE_SEEDS")
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		tb.Fatalf("WEIR_LANE_SEEDS: %v", err)
	}
	return max(n, usual)
}
