package inflight

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// The server takes the deadline back when it has the first frame with its payload. A part of the
// frame must not count.
func TestADrainWaitsASecondForTheWholeFirstFrame(t *testing.T) {
	const settings = "\x00\x00\x06\x04\x00\x00\x00\x00\x00" // with 6 bytes behind
	for name, test := range map[string]struct {
		sent []string
		ends bool
	}{
		"nothing":                  {nil, true},
		"half a head":              {[]string{settings[:5]}, true},
		"a head":                   {[]string{settings}, true},
		"half a payload":           {[]string{settings, "\x00\x03"}, true},
		"a frame":                  {[]string{settings, "\x00\x03\x00\x00\x00\x01"}, false},
		"a frame without payload":  {[]string{"\x00\x00\x00\x04\x00\x00\x00\x00\x00"}, false},
		"a frame and half a frame": {[]string{settings + "\x00\x03\x00\x00\x00\x01" + settings}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _ := newBound(t)
				p := connect(t, b, false)
				for _, part := range test.sent {
					if _, err := io.WriteString(p.client, part); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				b.Drain()
				time.Sleep(greetTime - 1)
				if p.isEnded() {
					t.Error("the connection ended early")
				}
				time.Sleep(time.Nanosecond)
				if p.isEnded() != test.ends {
					t.Errorf("after a second: ended %t, want %t", p.isEnded(), test.ends)
				}
			})
		})
	}
}

// A server may accept a connection just before it closes its listener.
func TestAConnectionThatComesDuringADrainHasASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBound(t)
		b.Drain()
		client, raw := net.Pipe()
		defer client.Close()
		shaken := b.Shake(raw)
		begun := time.Now()
		if _, err := raw.Read(make([]byte, 1)); err == nil || time.Since(begun) != greetTime {
			t.Errorf("the handshake ended with %v after %v, want %v", err, time.Since(begun), greetTime)
		}
		shaken()
		silent, counted := connect(t, b, false), b.Count(newEndless(t))
		honest := connect(t, b, false)
		if err := http2.NewFramer(honest.client, nil).WriteSettings(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_ = honest.server.Conn.SetDeadline(time.Time{}) // as the server does behind the first frame
		time.Sleep(greetTime)
		if !silent.isEnded() || honest.isEnded() {
			t.Errorf("ended: silent %t, honest %t; want the silent one alone", silent.isEnded(), honest.isEnded())
		}
		if _, err := counted.Conn.Write([]byte("x")); err != nil {
			t.Errorf("a connection of the lane, which drains by itself: %v", err)
		}
	})
}

// newEndless returns a connection whose client reads all.
func newEndless(t *testing.T) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	go func() { _, _ = io.Copy(io.Discard, client) }()
	return server
}
