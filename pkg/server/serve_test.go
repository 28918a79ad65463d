package server

import (
	"net"
	"testing"
)

func TestAStopBeforeTheServerServesIsNoError(t *testing.T) {
	for _, library := range []bool{false, true} {
		s := start(t, "", func(o *Options) { o.GRPCGo = library }).server
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if err := s.Serve(l); err != nil {
			t.Errorf("grpc-go %v: got %v, want nil", library, err)
		}
		if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
			_ = conn.Close()
			t.Errorf("grpc-go %v: the address still listens", library)
		}
	}
}
