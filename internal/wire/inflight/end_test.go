package inflight

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

func TestAConnectionEndsWhenItsMessageDoesNotCome(t *testing.T) {
	frame := func(f func(*peers) error) func(*testing.T, *peers) {
		return func(t *testing.T, p *peers) {
			t.Helper()
			if err := f(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		begin func(t *testing.T, p *peers)
		ends  bool
	}{
		"nothing":        {func(*testing.T, *peers) {}, false},
		"headers":        {func(t *testing.T, p *peers) { t.Helper(); p.open(t, 1, 10, 0) }, true},
		"half_a_message": {func(t *testing.T, p *peers) { t.Helper(); p.open(t, 1, 10, 50) }, true},
		"a_message_and_more": {func(t *testing.T, p *peers) {
			t.Helper()
			p.open(t, 1, 10, 0)
			_ = p.send.WriteData(1, false, make([]byte, 5))
		}, false},
		"half_a_frame":   {frame(func(p *peers) error { _, err := p.client.Write([]byte{0, 0, 100, 0, 1}); return err }), true},
		"half_a_payload": {frame(func(p *peers) error { _, err := p.client.Write([]byte{0, 0, 100, 0, 1, 0, 0, 0, 1, 0, 0}); return err }), true},
		"a_ping":         {frame(func(p *peers) error { return p.send.WritePing(false, [8]byte{}) }), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _ := newBound(t)
				p := connect(t, b, false)
				test.begin(t, p)
				time.Sleep(9 * time.Second)
				if p.isEnded() {
					t.Error("the connection ended early")
				}
				time.Sleep(3 * time.Second)
				if p.isEnded() != test.ends || b.Stats().Ended["slow_message"] != map[bool]uint64{true: 1}[test.ends] {
					t.Errorf("ended: got %t, %+v; want %t", p.isEnded(), b.Stats(), test.ends)
				}
			})
		})
	}
}

func TestAConnectionEndsForFramesOfAnAttack(t *testing.T) {
	for name, test := range map[string]struct {
		send func(p *peers) error
		want string
	}{
		"continuations": {func(p *peers) error {
			err := p.send.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("x")})
			for range maxContinuations + 1 {
				if err == nil {
					err = p.send.WriteContinuation(1, false, []byte("x"))
				}
			}
			return err
		}, "bad_frames"},
		"large_settings": {func(p *peers) error { return p.send.WriteSettings(make([]http2.Setting, 200)...) }, "bad_frames"},
		"streams": {func(p *peers) (err error) {
			for id := uint32(1); id <= 2*200+1 && err == nil; id += 2 {
				err = p.send.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: true})
			}
			return err
		}, "too_many_streams"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := New(Options{MaxBytes: 1 << 30, MaxStreams: 200, MessageTimeout: time.Hour, Logger: slog.New(slog.DiscardHandler)})
				p := connect(t, b, false)
				_ = test.send(p)
				if !p.isEnded() || b.Stats().Ended[test.want] != 1 || b.Stats().Bytes != 0 {
					t.Errorf("ended: got %t, %+v; want the reason %s", p.isEnded(), b.Stats(), test.want)
				}
			})
		})
	}
}

// Another processor may give the bytes back at once, so one of many ends must show them.
func TestBytesCountUntilTheGoroutinesOfAConnectionHadATurn(t *testing.T) {
	for range 100 {
		var crowded bool
		synctest.Test(t, func(t *testing.T) {
			b, _ := newBound(t)
			greedy := connect(t, b, false)
			for id := uint32(1); !b.Crowded(); id += 2 {
				greedy.open(t, id, 10, 0)
			}
			_ = greedy.server.Close()
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
