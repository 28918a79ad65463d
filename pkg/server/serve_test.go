package server

import (
	"net"
	"testing"
)

func TestAStopBeforeTheServerServesIsNoError(t *testing.T) {
	for _, lane := range []bool{false, true} {
		s := start(t, "", func(o *Options) { o.Lane = lane }).server
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if err := s.Serve(l); err != nil {
			t.Errorf("lane %v: got %v, want nil", lane, err)
		}
		if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
			_ = conn.Close()
			t.Errorf("lane %v: the address still listens", lane)
		}
	}
}
