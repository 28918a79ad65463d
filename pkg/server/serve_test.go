package server

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"
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

func TestOldConnectionsAreClosed(t *testing.T) {
	f := start(t, spanRules, func(o *Options) { o.MaxConnectionAge, o.MaxConnectionAgeGrace = 20*time.Millisecond, time.Second })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	f.ask(t, descriptor("user", "b"))
	for state := f.conn.GetState(); state != connectivity.Idle; state = f.conn.GetState() {
		if !f.conn.WaitForStateChange(ctx, state) {
			t.Fatalf("the connection is %v, want it closed", state)
		}
	}
}
