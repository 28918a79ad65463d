package lane

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// small is the options of conversations.
func small(o *Options) { o.MaxMessage, o.MaxInPlace = 1000, 400 }

// play gives the bytes to a new connection in pieces, and returns all that the connection sends.
// Calls that wait are finished in the end.
func play(tb testing.TB, l *Lane, pieces [][]byte) ([]byte, error) {
	tb.Helper()
	h := new(handler)
	conn := l.Open(start, h, nil, 0)
	var out []byte
	var err error
	for _, piece := range pieces {
		err = conn.receiveAll(piece, start)
		out = append(out, conn.Output()...)
		if err != nil {
			break
		}
	}
	for _, id := range h.calls {
		_ = conn.Finish(id, []byte("at last"), Reply{}, start)
	}
	checkCounts(tb, conn)
	return append(out, conn.Output()...), err
}

// checkCounts compares the counts of a connection with its streams.
func checkCounts(tb testing.TB, c *Conn) {
	tb.Helper()
	want := streams{byID: c.opened.byID, most: c.opened.most}
	for _, s := range c.opened.byID {
		want.heads += s.head.size()
		want.messages += len(s.message.bytes)
		want.queued += len(s.queue) - s.sent
		if s.gone {
			want.gone++
			continue
		}
		want.open++
		if !s.ended && (!s.foreign || s.incomplete) {
			want.incomplete++
		}
	}
	if d := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", c.opened)); d != "" {
		tb.Errorf("the counts of streams are wrong: %s", d)
	}
}

// cut cuts bytes at random places.
func cut(r *rand.Rand, b []byte) [][]byte {
	var pieces [][]byte
	most := []int{1, 3, 20, 200, 5000}[r.IntN(5)]
	for len(b) > 0 {
		n := min(1+r.IntN(most), len(b))
		pieces = append(pieces, bytes.Clone(b[:n]))
		b = b[n:]
	}
	return pieces
}

func TestBytesCutAnywhereMeanTheSame(t *testing.T) {
	answered := 0
	l := newLane(t, small)
	for seed := range seeds(t, 150) {
		c := newConversation(t, seed, false)
		sent := c.write(1 + c.r.IntN(30))
		want, wantErr := play(t, l, [][]byte{sent})
		for range 3 {
			got, err := play(t, l, cut(c.r, sent))
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("seed %d: cut: got error %v, want %v", seed, err, wantErr)
			}
			if !bytes.Equal(got, want) {
				reader := newClient(t)
				whole := reader.read(want)
				reader = newClient(t)
				t.Fatalf("seed %d: whole and cut differ:\n%s", seed, cmp.Diff(whole, reader.read(got)))
			}
		}
		if frames := newClient(t).read(want); wantErr == nil {
			ended := 0
			for _, text := range frames {
				if strings.HasSuffix(text, " END") || strings.Contains(text, "RST_STREAM") && !strings.HasSuffix(text, " NO_ERROR") {
					ended++
				}
			}
			answered += ended
		}
		if wantErr != nil {
			t.Fatalf("seed %d: a valid conversation ended with %v", seed, wantErr)
		}
	}
	if answered < 1500 {
		t.Errorf("only %d requests were answered", answered)
	}
}

func FuzzBytes(f *testing.F) {
	for seed := range uint64(20) {
		c := newConversation(f, seed, false)
		f.Add(c.write(3)[len(preface):], seed)
	}
	l := newLane(f, small)
	f.Fuzz(func(t *testing.T, sent []byte, seed uint64) {
		playCut(t, l, append([]byte(preface), sent...), rand.New(rand.NewPCG(seed, 3)))
	})
}

// playCut plays the bytes whole and cut, and compares the outputs.
func playCut(t *testing.T, l *Lane, sent []byte, r *rand.Rand) {
	t.Helper()
	want, wantErr := play(t, l, [][]byte{sent})
	got, err := play(t, l, cut(r, sent))
	if fmt.Sprint(err) != fmt.Sprint(wantErr) || !bytes.Equal(got, want) {
		t.Errorf("whole: %x, %v\ncut: %x, %v", want, wantErr, got, err)
	}
	newClient(t).read(want) // frames, and header blocks of HPACK
}

// FuzzFrames makes frames of the bytes, so that more of them get behind the checks of a frame's
// head.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 1, 5, 1, 4, 9, 9, 9, 9})
	l := newLane(f, small)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newConversation(t, uint64(len(b)), false)
		sent := c.write(2)
		for len(b) > 4 {
			n := min(int(b[0]), len(b)-4)
			sent = append(appendFrame(sent, n, b[1]%11, b[2], uint32(b[3]%16)), b[4:4+n]...)
			b = b[4+n:]
		}
		playCut(t, l, sent, c.r)
	})
}
