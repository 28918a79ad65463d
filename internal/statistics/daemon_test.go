package statistics

import (
	"bufio"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// daemon is a listener for StatsD.
type daemon struct {
	address string
	lines   chan string
	packets chan int      // sizes of packets by UDP
	read    chan struct{} // TCP: a connection was read to its end
	close   func()
}

// listen starts a daemon on an address, "127.0.0.1:0" for any port.
func listen(t *testing.T, tcp bool, address string) *daemon {
	t.Helper()
	d := &daemon{lines: make(chan string, 100_000), packets: make(chan int, 10_000), read: make(chan struct{}, 1000)}
	var reading sync.WaitGroup
	if tcp {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				for s := bufio.NewScanner(conn); s.Scan(); {
					d.lines <- s.Text()
				}
				conn.Close()
				d.read <- struct{}{}
			}
		})
		d.address = l.Addr().String()
		d.close = sync.OnceFunc(func() { l.Close(); reading.Wait() })
	} else {
		conn, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			packet := make([]byte, 1<<16)
			for {
				n, _, err := conn.ReadFrom(packet)
				if err != nil {
					return
				}
				d.packets <- n
				for line := range strings.SplitSeq(strings.TrimSuffix(string(packet[:n]), "\n"), "\n") {
					d.lines <- line
				}
			}
		})
		d.address = conn.LocalAddr().String()
		d.close = sync.OnceFunc(func() { conn.Close(); reading.Wait() })
	}
	t.Cleanup(d.close)
	return d
}

// take returns so many lines, sorted.
func (d *daemon) take(t *testing.T, n int) []string {
	t.Helper()
	deadline := time.After(time.Minute)
	var all []string
	for len(all) < n {
		select {
		case line := <-d.lines:
			all = append(all, line)
		case <-deadline:
			t.Fatalf("got %d lines, want %d:\n%s", len(all), n, strings.Join(all, "\n"))
		}
	}
	slices.Sort(all)
	return all
}

func (d *daemon) wantNothing(t *testing.T) {
	t.Helper()
	select {
	case line := <-d.lines:
		t.Errorf("got %q, want nothing more", line)
	default:
	}
}
