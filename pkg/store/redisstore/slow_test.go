package redisstore

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/redisconn"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// far is a server, for tests in a bubble, that admits everything, with answers that take their time. The bubble's clock is the
// server's. far implements connection.
type far struct {
	client rueidis.Client
	trip   func() time.Duration // of the next call; calls are answered in their order
	calls  atomic.Int64         // of the script
	under  atomic.Int64         // calls under way
	most   atomic.Int64         // that ever were
	ran    func(request []byte) // gets each request as the server runs it; may be nil
	slots  func() string        // the answer to CLUSTER SLOTS; nil: no cluster
	hangs  atomic.Int64         // added to each trip
}

// hang delays the answers from now on.
func (f *far) hang(by time.Duration) { f.hangs.Store(int64(by)) }

func (f *far) Client() (rueidis.Client, error) { return f.client, nil }
func (f *far) Report(err error) error          { return err }
func (f *far) Cluster() bool                   { return false }
func (f *far) Nodes() *redisconn.Nodes         { return nil }
func (f *far) InvalidReplies() uint64          { return 0 }
func (f *far) Await(context.Context) error     { return nil }
func (f *far) Close()                          { f.client.Close() }
func (f *far) dial(context.Context, string, *net.Dialer) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go f.serve(theirs)
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
	ended := make(chan struct{})
	defer close(ended)
	defer close(line)
	until := func(at time.Time) {
		select {
		case <-time.After(time.Until(at)):
		case <-ended:
		}
	}
	go func() { // the server
		defer close(answers)
		for p := range line {
			until(p.runs)
			text := f.run(p.command)
			answers <- func() {
				until(p.answers)
				if strings.HasPrefix(p.command[0], "EVAL") {
					f.under.Add(-1)
				}
				_, _ = io.WriteString(conn, text)
			}
		}
	}()
	go func() {
		for answer := range answers {
			answer()
		}
	}()
	in := bufio.NewReader(conn)
	var last time.Time
	for {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		var trip time.Duration
		if strings.HasPrefix(command[0], "EVAL") {
			trip = f.trip() + time.Duration(f.hangs.Load())
			f.most.Store(max(f.most.Load(), f.under.Add(1)))
			f.calls.Add(1)
		} else if command[0] == "DEL" {
			trip = f.trip() + time.Duration(f.hangs.Load())
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
	request := []byte(command[3+keys])
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
			times, charges := rest[1:5], int(binary.LittleEndian.Uint32(rest[5:]))
			if action(rest[0]) == correct {
				times = []byte{1, 0, 0, 0}
			}
			answer = append(answer, times...)
			for rest = rest[9:]; charges > 0; charges-- {
				corrected := rest[5]&16 != 0
				rest = rest[26:]
				if corrected {
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

// away returns a store in a bubble that asks f. The bubble's end closes the store.
func away(t *testing.T, f *far, o Options) *Store {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"far"}, ForceSingleClient: true, AlwaysPipelining: true, DisableCache: true, DisableRetry: true,
		PipelineMultiplex: -1, BlockingPipeline: -1, RingScaleEachConn: 8, ClientSetInfo: rueidis.DisableClientSetInfo,
		ReadBufferEachConn: 64 << 10, WriteBufferEachConn: 64 << 10,
		DialCtxFn: func(ctx context.Context, to string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return f.dial(ctx, to, d)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.client = client
	o.Target.URLs = []string{"redis://127.0.0.1:1"}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := newStore(o, func(redisconn.Target) connection { return f })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// arrivals has requests of different keys come at random for a time, so many in a second. arrivals returns their number and the
// errors.
func arrivals(t *testing.T, s *Store, perSecond float64, during, deadline time.Duration) (n int, failed []error) {
	t.Helper()
	var mu sync.Mutex // guards failed
	var requests sync.WaitGroup
	random := newRand(uint64(perSecond))
	for end := time.Now().Add(during); time.Now().Before(end); n++ {
		time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second) / perSecond))
		c := hit(strconv.Itoa(n), perAge(algorithms.FixedWindow, 10))
		requests.Go(func() {
			ctx := t.Context()
			if deadline > 0 {
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, deadline)
				defer cancel()
			}
			if _, err := s.Take(ctx, []store.Charge{c}, make([]algorithms.Decision, 1)); err != nil {
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
		})
	}
	requests.Wait()
	return n, failed
}

func between(r *rand.Rand, least, most time.Duration) func() time.Duration {
	return func() time.Duration { return least + time.Duration(r.Int64N(int64(most-least)+1)) }
}

func TestSlowRedisAnswersEveryRequestInTime(t *testing.T) {
	for _, test := range []struct {
		name        string
		least, most time.Duration
		deadline    time.Duration // of the callers
	}{
		{"6ms", 6 * time.Millisecond, 6 * time.Millisecond, 0},
		{"5ms to 9ms", 5 * time.Millisecond, 9 * time.Millisecond, 0},
		{"10ms to 14ms, callers with 20ms", 10 * time.Millisecond, 14 * time.Millisecond, 20 * time.Millisecond},
		{"30ms, callers with a second", 30 * time.Millisecond, 30 * time.Millisecond, time.Second},
	} {
		for _, perSecond := range []float64{100, 400, 1500, 6000} {
			t.Run(fmt.Sprintf("%s, %v per second", test.name, perSecond), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &far{trip: between(newRand(1), test.least, test.most)}
					s := away(t, f, Options{})
					n, failed := arrivals(t, s, perSecond, time.Duration(min(4000, 2_000_000/perSecond))*time.Millisecond, test.deadline)
					if len(failed) > 0 {
						t.Errorf("%d of %d requests failed, the first: %v", len(failed), n, failed[0])
					}
					if most := f.most.Load(); most > singleQueues*singleFlights {
						t.Errorf("%d calls were under way at once", most)
					}
					t.Logf("%d requests in %d calls, at most %d at once", n, f.calls.Load(), f.most.Load())
				})
			})
		}
	}
}

func TestFastRedisHasOneCallOfAQueueUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trip atomic.Int64
		trip.Store(int64(9 * time.Millisecond))
		f := &far{trip: func() time.Duration { return time.Duration(trip.Load()) }}
		s := away(t, f, Options{})
		arrivals(t, s, 2000, 100*time.Millisecond, 0) // Redis was slow
		trip.Store(int64(500 * time.Microsecond))
		arrivals(t, s, 2000, 100*time.Millisecond, 0)
		f.most.Store(0)
		before := f.calls.Load()
		n, failed := arrivals(t, s, 40_000, 100*time.Millisecond, 0)
		if len(failed) > 0 || f.most.Load() > singleQueues {
			t.Errorf("%d requests failed, %d calls were under way at once; want at most %d", len(failed), f.most.Load(), singleQueues)
		}
		if calls := f.calls.Load() - before; calls > singleQueues*200*11/10 {
			t.Errorf("%d requests in %d calls; a queue has 200 round trips of 500µs in 100ms", n, calls)
		}
	})
}

func TestWorkersOfASlowTimeEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: func() time.Duration { return 9 * time.Millisecond }}
		s := away(t, f, Options{})
		arrivals(t, s, 6000, 200*time.Millisecond, 0)
		if most := f.most.Load(); most <= singleQueues {
			t.Fatalf("at most %d calls were under way at once", most)
		}
		time.Sleep(time.Second)
		for i, q := range s.main.queues {
			q.mu.Lock()
			if l := q.nodeQueueLocked(0); l.workers != 1 || l.idle != 1 || len(q.spare) >= singleFlights {
				t.Errorf("queue %d has %d workers, of which %d wait, and spare memory for %d", i, l.workers, l.idle, len(q.spare))
			}
			q.mu.Unlock()
		}
	})
}
