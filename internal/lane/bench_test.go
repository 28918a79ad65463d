package lane

import (
	"fmt"
	"testing"
)

// chunks returns reads of so many requests each, and a connection that has read the greeting and one chunk.
func chunks(t testing.TB, requests int, more ...string) (c *Conn, next func() []byte) {
	t.Helper()
	cl := newClient(t)
	c = newLane(t, echo{}).Open(start, nil, 0)
	cl.greet()
	id := uint32(1)
	for range 3 {
		cl.ask(id, "a message of a usual length: some seventy bytes, as Envoy sends for one", more...)
		id += 2
	}
	if err := c.Receive(cl.take(), start); err != nil {
		t.Fatal(err)
	}
	var starts []int
	for range requests {
		starts = append(starts, cl.sent.Len())
		cl.ask(1, "a message of a usual length: some seventy bytes, as Envoy sends for one", more...)
	}
	chunk := cl.take()
	return c, func() []byte {
		for _, at := range starts {
			f := parseFrame(chunk[at:])
			for _, at := range []int{at, at + frameHead + f.length} {
				copy(chunk[at+5:], []byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)})
			}
			if id += 2; id > maxStreamID {
				panic("too many requests")
			}
		}
		return chunk
	}
}

// credit opens the client's window again, as a client does now and then.
func reopen(c *Conn) { c.sendWindow = defaultWindow }

func TestAWholeRequestAllocatesNothing(t *testing.T) {
	for _, requests := range []int{1, 20} {
		c, next := chunks(t, requests)
		var spare []byte
		allocs := testing.AllocsPerRun(1000, func() {
			if err := c.Receive(next(), start); err != nil {
				t.Fatal(err)
			}
			reopen(c)
			spare = c.Output(spare)
		})
		if allocs != 0 {
			t.Errorf("%d requests in one chunk: %v allocations, want 0", requests, allocs)
		}
		if c.Answered() < uint64(1000*requests) {
			t.Errorf("got %d answers", c.Answered())
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, requests := range []int{1, 20} {
		b.Run(fmt.Sprintf("chunk=%d", requests), func(b *testing.B) {
			c, next := chunks(b, requests)
			var spare []byte
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Receive(next(), start); err != nil {
					b.Fatal(err)
				}
				reopen(c)
				if out := c.Output(spare); out != nil {
					spare = out
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*requests), "ns/request")
		})
	}
}
