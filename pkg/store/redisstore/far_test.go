package redisstore

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/redis"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// far is a server, for tests in a bubble, that admits everything, with answers that take their
// time. The bubble's clock is the server's. far implements connection.
type far struct {
	client rueidis.Client
	trip   func() time.Duration          // of the next call; calls are answered in their order
	calls  atomic.Int64                  // of the script
	under  atomic.Int64                  // calls under way
	most   atomic.Int64                  // that ever were
	ran    func(request []byte)          // gets each request as the server runs it; may be nil
	told   atomic.Int64                  // the sum of the hits of corrections that came in time
	slots  func() string                 // the answer to CLUSTER SLOTS; nil: no cluster
	took   atomic.Int64                  // the sum of the hits of requests that came in time
	hangs  atomic.Int64                  // added to each trip
	ice    atomic.Pointer[chan struct{}] // until it closes the server runs nothing; nil: it runs
	beats  func(args []string) string    // answers heartbeats; may be nil
	served sync.WaitGroup                // connections
	error  atomic.Pointer[string]        // the answer to each call of the script, which does not run; nil: it runs

	dials atomic.Int64 // time of the next dials, which do not heed their contexts
	conn  net.Conn     // the newest; of the dialing goroutine, and of tests between dials
}

// hang delays the answers from now on.
func (f *far) hang(by time.Duration) { f.hangs.Store(int64(by)) }

// freeze stops the server, as SIGSTOP does. After thaw the server goes on with all that it has
// received.
func (f *far) freeze() (thaw func()) {
	ice := make(chan struct{})
	f.ice.Store(&ice)
	return func() {
		f.ice.Store(nil)
		close(ice)
	}
}

func (f *far) Client() (rueidis.Client, error) { return f.client, nil }
func (f *far) Report(err error) error          { return err }
func (f *far) Cluster() bool                   { return false }
func (f *far) Nodes() *redis.Nodes             { return nil }
func (f *far) Primaries() []string             { return nil }
func (f *far) InvalidReplies() uint64          { return 0 }
func (f *far) EvictedKeys() uint64             { return 0 }
func (f *far) Restarts() uint64                { return 0 }
func (f *far) Steady() bool                    { return f.dials.Load() == 0 }
func (f *far) Await(context.Context) error     { return nil }
func (f *far) Close()                          { f.client.Close() }
func (f *far) dial(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	time.Sleep(time.Duration(f.dials.Load()))
	ours, theirs := net.Pipe()
	f.conn = theirs
	f.served.Go(func() { f.serve(theirs) })
	return ours, nil
}

// serve answers one connection. Half of a trip is the way to the server.
func (f *far) serve(conn net.Conn) {
	type pending struct {
		command []string
		runs    time.Time
		answers time.Time
	}
	line := make(chan pending, 1<<16)
	answers := make(chan func(), 1<<16)
	defer close(line)
	// until sleeps, as threads that look at timers of channels at the same instant spoil the race
	// detector (golang/go#78156).
	until := func(at time.Time) { time.Sleep(time.Until(at)) }
	f.served.Go(func() { // the server
		defer close(answers)
		for p := range line {
			until(p.runs)
			if ice := f.ice.Load(); ice != nil {
				<-*ice
			}
			text := f.run(p.command)
			answers <- func() {
				until(p.answers)
				if strings.HasPrefix(p.command[0], "EVAL") {
					f.under.Add(-1)
				}
				_, _ = io.WriteString(conn, text)
			}
		}
	})
	f.served.Go(func() {
		for answer := range answers {
			answer()
		}
	})
	in := bufio.NewReader(conn)
	var last time.Time
	for {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		var trip time.Duration
		script := strings.HasPrefix(command[0], "EVAL")
		if script || command[0] == "DEL" {
			trip = f.trip() + time.Duration(f.hangs.Load())
		}
		if script {
			f.most.Store(max(f.most.Load(), f.under.Add(1)))
			f.calls.Add(1)
		}
		now := time.Now()
		p := pending{command, now.Add(trip / 2), now.Add(trip)}
		if p.answers.Before(last) { // one connection keeps the order
			p.answers = last
		}
		last = p.answers
		line <- p
	}
}

// run returns the answer to a command.
func (f *far) run(command []string) string {
	switch command[0] {
	case "HELLO":
		return "%2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:3\r\n"
	case "EVALSHA", "EVAL":
	case "CLUSTER":
		return f.slots()
	case "DEL":
		return fmt.Sprintf(":%d\r\n", len(command)-1)
	default:
		return "+OK\r\n"
	}
	keys, _ := strconv.Atoi(command[2])
	if args := command[3+keys:]; len(args) == 13 {
		return f.beats(args)
	}
	if text := f.error.Load(); text != nil {
		return "-" + *text + "\r\n"
	}
	request := []byte(command[3+keys])
	if len(request) > 16 && request[16] == isSeeding {
		return fmt.Sprintf(":%d\r\n", keys)
	}
	if f.ran != nil {
		f.ran(request)
	}
	now := uint64(time.Now().UnixMicro())
	answer := binary.LittleEndian.AppendUint64([]byte{done}, now)
	if deadline := binary.LittleEndian.Uint64(request[8:]); deadline > 0 && now >= deadline {
		answer[0] = late
	} else {
		answer = append(answer, make([]byte, keys)...) // no key has a value
		for rest := request[headerSize:]; len(rest) > 0; {
			times, correction, charges := rest[1:5], action(rest[0]) == correct, int(binary.LittleEndian.Uint32(rest[5:]))
			if correction {
				times = []byte{1, 0, 0, 0}
			}
			answer = append(answer, times...)
			for rest = rest[9:]; charges > 0; charges-- {
				hits := binary.LittleEndian.Uint64(rest[21:])
				if !correction && !strings.Contains(command[2+binary.LittleEndian.Uint32(rest)], "ping") {
					f.took.Add(int64(hits) >> 24 * int64(binary.LittleEndian.Uint32(times)))
				}
				if correction {
					f.told.Add(int64(hits) >> 24) // the last five of these bytes
				}
				fixed := rest[5]&16 != 0
				if rest = rest[29:]; fixed {
					rest = rest[8:]
					for range 3 {
						rest = rest[1+int(rest[0]):]
					}
				}
			}
		}
	}
	return fmt.Sprintf("$%d\r\n%s\r\n", len(answer), answer)
}

// readCommand reads a command as an array of bulk strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	number := func(kind byte) (int, error) {
		text, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if text[0] != kind {
			return 0, fmt.Errorf("%q: must begin with %c", text, kind)
		}
		return strconv.Atoi(strings.TrimSpace(text[1:]))
	}
	n, err := number('*')
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		command[i] = string(b[:size])
	}
	return command, nil
}

// farClient returns a client in a bubble. o says which servers it asks, and how the client connects
// to them.
func farClient(t *testing.T, o rueidis.ClientOption) rueidis.Client {
	t.Helper()
	o.AlwaysPipelining, o.DisableCache, o.DisableRetry, o.ClientSetInfo = true, true, true, rueidis.DisableClientSetInfo
	o.PipelineMultiplex, o.BlockingPipeline, o.RingScaleEachConn = -1, -1, 8
	o.ReadBufferEachConn, o.WriteBufferEachConn = 64<<10, 64<<10
	client, err := rueidis.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// away returns a store in a bubble that asks f. The bubble's end closes the store.
func away(t *testing.T, f *far, o Options) *Store {
	t.Helper()
	return awayBy(t, f, f, o)
}

// awayBy is away with another connection to f.
func awayBy(t *testing.T, f *far, c connection, o Options) *Store {
	t.Helper()
	f.client = farClient(t, rueidis.ClientOption{InitAddress: []string{"far"}, ForceSingleClient: true, DialCtxFn: f.dial})
	o.Target.URLs = []string{"redis://127.0.0.1:1"}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := newStore(o, func(redis.Target) connection { return c })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		f.served.Wait() // the time of a bubble stands still when its test has ended
	})
	return s
}

// farCluster is a cluster of far servers, for tests in a bubble. farCluster implements connection.
type farCluster struct {
	far

	fars  []*far
	nodes *redis.Nodes
}

func (c *farCluster) Cluster() bool       { return true }
func (c *farCluster) Nodes() *redis.Nodes { return c.nodes }
func (c *farCluster) Primaries() []string { return []string{"far0:1", "far1:1", "far2:1"} }

// calls returns the calls of the script that all servers got.
func (c *farCluster) calls() (n int64) {
	for _, f := range c.fars {
		n += f.calls.Load()
	}
	return n
}

// slots returns the answer to CLUSTER SLOTS.
func (c *farCluster) slots() string {
	var ranges strings.Builder
	n := 0
	for first := 0; first < slots; n++ {
		last := first
		for last+1 < slots && c.nodes[last+1] == c.nodes[first] {
			last++
		}
		fmt.Fprintf(&ranges, "*3\r\n:%d\r\n:%d\r\n*3\r\n$4\r\nfar%d\r\n:1\r\n$1\r\n%d\r\n", first, last, c.nodes[first], c.nodes[first])
		first = last + 1
	}
	return fmt.Sprintf("*%d\r\n%s", n, ranges.String())
}

// awayCluster returns a store in a bubble that asks a cluster of three servers, each at a constant
// distance. The bubble's end closes the store.
func awayCluster(t *testing.T, distance time.Duration, of func(slot int) int) (*Store, *farCluster) {
	t.Helper()
	c := &farCluster{nodes: new(redis.Nodes)}
	for slot := range c.nodes {
		c.nodes[slot] = uint16(of(slot))
	}
	for range 3 {
		c.fars = append(c.fars, &far{trip: func() time.Duration { return distance }, slots: c.slots})
	}
	c.client = farClient(t, rueidis.ClientOption{
		InitAddress: []string{"far0:1"},
		DialCtxFn: func(ctx context.Context, to string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(to, "far"), ":1"))
			if err != nil {
				return nil, err
			}
			return c.fars[n].dial(ctx, to, d, secure)
		},
	})
	o := Options{Target: Target{URLs: []string{"redis-cluster://127.0.0.1:1"}}, Logger: slog.New(slog.DiscardHandler)}
	s, err := newStore(o, func(redis.Target) connection { return c })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		time.Sleep(20 * time.Second) // rueidis closes the connections of a cluster in the background
		for _, f := range c.fars {
			f.served.Wait()
		}
	})
	return s, c
}

// layouts are ways to give slots to three nodes.
func layouts() map[string]func(slot int) int {
	return map[string]func(slot int) int{
		"thirds":      func(slot int) int { return slot * 3 / slots },
		"interleaved": func(slot int) int { return slot / 16 % 3 },
	}
}

// gone is a far server to which there may be no connection.
type gone struct {
	*far

	away atomic.Bool
}

func (g *gone) Client() (rueidis.Client, error) {
	if g.away.Load() {
		return nil, ErrUnavailable
	}
	return g.far.Client()
}

func leaving() (*far, *gone) {
	f := farBy(time.Millisecond)
	return f, &gone{far: f}
}

// farBy returns a far server at a constant distance.
func farBy(d time.Duration) *far { return &far{trip: func() time.Duration { return d }} }

// taking takes a charge and returns how long that took, by the bubble's clock.
func taking(t *testing.T, s *Store, c store.Charge) time.Duration {
	t.Helper()
	begun := time.Now()
	if _, err := store.Take(t.Context(), s, []store.Charge{c}, make([]algorithms.Decision, 1)); err != nil {
		t.Error(err)
	}
	return time.Since(begun)
}
