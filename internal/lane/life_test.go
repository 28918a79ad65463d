package lane

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// owner is a Foreign that keeps its streams, and the bytes that it has not credited.
type owner struct {
	open  []uint32
	bytes map[uint32]int
}

func (o *owner) Begin(id uint32, _ []hpack.HeaderField, _ bool) { o.open = append(o.open, id) }
func (o *owner) Data(id uint32, data []byte, _ bool)            { o.bytes[id] += len(data) }
func (o *owner) Credit(uint32, int)                             {}
func (o *owner) Arrived(uint64, int64)                          {}
func (o *owner) Reset(id uint32, _ Code) {
	o.open = slices.DeleteFunc(o.open, func(other uint32) bool { return other == id })
}

// life is a random life of a connection: a client, a handler and a Foreign that do anything they
// may at any time.
type life struct {
	*talk
	r     *rand.Rand
	owner *owner
	next  uint32
	mine  []uint32 // streams to which the client may send
}

func (l *life) pick(ids []uint32) uint32 {
	if len(ids) == 0 {
		return 0
	}
	return ids[l.r.IntN(len(ids))]
}

// step does one thing.
func (l *life) step() error {
	switch l.r.IntN(14) {
	case 0, 1, 2:
		l.ask(l.next, []string{"hello", "later", "later", "fail"}[l.r.IntN(4)])
		l.next += 2
	case 3:
		l.headers(l.next, false, usual(":path", []string{testPath, "/other/Method"}[l.r.IntN(2)], "grpc-timeout", "1H")...)
		l.mine = append(l.mine, l.next)
		l.next += 2
	case 4, 5:
		if id := l.pick(l.mine); id != 0 {
			end := l.r.IntN(3) == 0
			l.must(l.framer.WriteDataPadded(id, end, make([]byte, l.r.IntN(2000)), make([]byte, l.r.IntN(9))))
			if end {
				l.mine = slices.DeleteFunc(l.mine, func(other uint32) bool { return other == id })
			}
		}
	case 6:
		if l.next > 1 {
			id := l.r.Uint32N(l.next/2)*2 + 1
			l.must(l.framer.WriteRSTStream(id, http2.ErrCodeCancel))
			l.mine = slices.DeleteFunc(l.mine, func(other uint32) bool { return other == id })
		}
	case 7:
		l.window(0, uint32(1+l.r.IntN(50000)))
	case 8:
		if l.next > 1 {
			l.window(l.r.Uint32N(l.next/2)*2+1, uint32(1+l.r.IntN(50000)))
		}
	case 9:
		l.must(l.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: l.r.Uint32N(100000)}))
	case 10, 11:
		if i := len(l.handler.calls); i > 0 {
			i = l.r.IntN(i)
			id := l.handler.calls[i]
			l.handler.calls = slices.Delete(l.handler.calls, i, i+1)
			return l.conn.Finish(id, make([]byte, l.r.IntN(3000)), Reply{Code: l.r.Uint32N(2)}, l.now)
		}
	case 12:
		l.foreign()
	case 13:
		l.now += l.r.Int64N(int64(200 * time.Millisecond))
		if err := l.conn.Tick(l.now); err != nil {
			return err
		}
		if l.r.IntN(300) == 0 {
			l.conn.Shutdown("test", l.now)
		}
	}
	return nil
}

// foreign does something that a Foreign may do.
func (l *life) foreign() {
	id := l.pick(l.owner.open)
	switch l.r.IntN(5) {
	case 0:
		l.conn.ForeignHeaders(id, pairs("x", "y"), l.r.IntN(2) == 0)
	case 1, 2:
		l.conn.ForeignData(id, make([]byte, l.r.IntN(20000)), l.r.IntN(4) == 0)
	case 3:
		l.conn.ForeignReset(id, []Code{NoError, InternalError}[l.r.IntN(2)])
	case 4:
		l.credit()
	}
}

// credit gives back all bytes that came.
func (l *life) credit() {
	for id, n := range l.owner.bytes {
		l.conn.ForeignCredit(id, n)
		delete(l.owner.bytes, id)
	}
}

// In any order of events, counts stay right, no window is lost, and the output is HTTP/2.
func TestLivesOfConnections(t *testing.T) {
	ends := make(map[string]int)
	for seed := range seeds(t, 40) {
		c := newTalk(t)
		l := &life{talk: c, r: rand.New(rand.NewPCG(seed, 4)), owner: &owner{bytes: make(map[uint32]int)}, next: 1}
		c.conn = newLane(t, func(o *Options) { o.MaxInPlace = 1500 }).Open(start, c.handler, l.owner, 0)
		c.greet()
		ends[fmt.Sprint(l.run(t))]++
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if ends["<nil>"] < 20 {
		t.Errorf("most lives must go well: %v", ends)
	}
}

// run lives one life, and returns the end of the connection.
func (l *life) run(t *testing.T) error {
	t.Helper()
	for range 500 {
		if err := l.step(); err != nil {
			return err
		}
		if l.r.IntN(3) == 0 {
			continue // several frames in one chunk
		}
		if _, err := l.send(); err != nil {
			return err
		}
		checkCounts(t, l.conn)
		held := 0
		for _, n := range l.owner.bytes {
			held += n
		}
		if got := l.conn.flow.window + l.conn.flow.consumed + held; got != 1<<20 {
			t.Fatalf("the window is %d bytes, want 1 MiB", got)
		}
	}
	for _, id := range l.mine {
		l.must(l.framer.WriteData(id, true, nil))
	}
	if _, err := l.send(); err != nil {
		return err
	}
	for _, id := range l.handler.calls {
		l.must(l.conn.Finish(id, nil, Reply{}, l.now))
	}
	for _, id := range slices.Clone(l.owner.open) {
		l.conn.ForeignReset(id, Cancel)
	}
	l.now += int64(20 * time.Second)
	err := l.conn.Tick(l.now) // ends streams that wait
	if err == nil && len(l.conn.opened.byID) > 0 {
		t.Errorf("%d streams are left", len(l.conn.opened.byID))
	}
	l.read(l.conn.Output())
	l.conn.Close()
	checkCounts(t, l.conn)
	if held := l.conn.Held(); held != 0 {
		t.Errorf("a closed connection holds %d bytes", held)
	}
	return err
}
