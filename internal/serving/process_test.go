package serving

import (
	"net"
	"testing"

	"google.golang.org/grpc"
)

func TestAStopBeforeTheServerServesIsNoError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	s.Stop()
	if err := serveGRPC(s, l); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the address still listens")
	}
}
