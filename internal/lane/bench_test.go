package lane

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
)

// chunks returns reads of so many requests each, and a connection that has read the greeting and
// three requests.
func chunks(tb testing.TB, h Handler, requests int) (c *Conn, next func() []byte) {
	tb.Helper()
	cl := newClient(tb)
	c = newLane(tb).Open(start, h, nil, 0)
	cl.greet()
	id := uint32(1)
	for range 3 {
		cl.ask(id, "a message of a usual length: some seventy bytes, as Envoy sends for one")
		id += 2
	}
	must.Do(tb, c.receiveAll(cl.take(), start))
	var starts []int
	for range requests {
		starts = append(starts, cl.sent.Len())
		cl.ask(1, "a message of a usual length: some seventy bytes, as Envoy sends for one")
	}
	chunk := cl.take()
	return c, func() []byte {
		for _, at := range starts {
			f := parseFrame(chunk[at:])
			for _, at := range []int{at, at + frameHead + f.length} {
				copy(chunk[at+5:], []byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)})
			}
			id += 2 // of 2^30 that a connection has
		}
		return chunk
	}
}

// turn opens the client's window again, as a client does now and then, and takes the output. The
// memory serves again.
func turn(c *Conn) {
	c.flow.send = defaultWindow
	c.Lend(c.Output())
}

func TestAWholeRequestAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	for _, requests := range []int{1, 20} {
		c, next := chunks(t, echo{}, requests)
		allocs := testing.AllocsPerRun(1000, func() {
			must.Do(t, c.receiveAll(next(), start))
			turn(c)
		})
		if allocs != 0 {
			t.Errorf("%d requests in one chunk: %v allocations, want 0", requests, allocs)
		}
		if c.Answered() < uint64(1000*requests) {
			t.Errorf("got %d answers", c.Answered())
		}
	}
}

// A request in two chunks becomes a stream. The memory of streams serves again.
func TestACutRequestAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	c, next := chunks(t, echo{}, 20)
	cut := 0
	allocs := testing.AllocsPerRun(3000, func() {
		chunk := next()
		cut = (cut + 7) % len(chunk)
		first, third := chunk[:cut/3], chunk[cut:]
		for _, piece := range [][]byte{first, chunk[len(first) : 2*cut/3], chunk[2*cut/3 : cut], third} {
			must.Do(t, c.receiveAll(piece, start))
		}
		turn(c)
	})
	if allocs != 0 {
		t.Errorf("got %v allocations, want 0", allocs)
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, requests := range []int{1, 20} {
		b.Run(fmt.Sprintf("chunk=%d", requests), func(b *testing.B) {
			c, next := chunks(b, echo{}, requests)
			b.ReportAllocs()
			for b.Loop() {
				if err := c.receiveAll(next(), start); err != nil {
					b.Fatal(err)
				}
				turn(c)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*requests), "ns/request")
		})
	}
}

// With tracing every header block has a new traceparent, and changes the dynamic table.
func BenchmarkTracedRequest(b *testing.B) {
	cl := newClient(b)
	c := newLane(b).Open(start, echo{}, nil, 0)
	cl.greet()
	const cycle = 4000 // different blocks: the table is the same after each cycle
	var pieces [][]byte
	id := uint32(1)
	for n := range cycle + 100 {
		cl.ask(id, "a message of a usual length: some seventy bytes, as Envoy sends for one",
			"traceparent", fmt.Sprintf("00-%032x-%016x-01", n%cycle, n%cycle))
		pieces = append(pieces, cl.take())
		id += 2
	}
	for _, piece := range pieces[:100] {
		if err := c.receiveAll(piece, start); err != nil {
			b.Fatal(err)
		}
	}
	n := 100
	b.ReportAllocs()
	for b.Loop() {
		piece := pieces[n]
		if n++; n == len(pieces) {
			n = 100
		}
		for _, at := range []int{0, frameHead + parseFrame(piece).length} {
			copy(piece[at+5:], []byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)})
		}
		id += 2
		if err := c.receiveAll(piece, start); err != nil {
			b.Fatal(err)
		}
		turn(c)
	}
}

// wait is a handler that answers later.
type wait struct{}

func (wait) Answer(_ *Call, _, dst []byte) ([]byte, Reply) { return dst, Reply{Later: true} }
func (wait) Cancel(uint32)                                 {}

func BenchmarkRequestThatWaits(b *testing.B) {
	c, next := chunks(b, wait{}, 20)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.receiveAll(next(), start); err != nil {
			b.Fatal(err)
		}
		for n := range uint32(20) {
			if err := c.Finish(c.ids.last-2*n, []byte("an answer of the usual length"), Reply{}, start); err != nil {
				b.Fatal(err)
			}
		}
		turn(c)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*20), "ns/request")
}

func TestAnIdleConnectionIsSmall(t *testing.T) {
	const connections, most = 500, 4 << 10
	l := newLane(t)
	cl := newClient(t)
	cl.greet()
	for id := uint32(1); id < 99; id += 2 {
		cl.ask(id, "hello", "user-agent", "envoy", "x-forwarded-for", "10.0.0.1")
	}
	sent := cl.take()
	all := make([]*Conn, connections)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range all {
		all[i] = l.Open(start, echo{}, nil, 0)
		all[i].Lend(all[i].Output())
		for _, piece := range [][]byte{sent[:len(sent)/2], sent[len(sent)/2:]} {
			must.Do(t, all[i].receiveAll(piece, start))
		}
		all[i].Output() // belongs to the caller
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := int(after.HeapAlloc-before.HeapAlloc) / connections; each > most {
		t.Errorf("an idle connection has %d bytes, want at most %d", each, most)
	} else {
		t.Logf("an idle connection has %d bytes", each)
	}
	runtime.KeepAlive(all)
}
