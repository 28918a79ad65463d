package server

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
)

// A client without a certificate may send 256 KiB as a certificate, and crypto/tls would keep them.
func TestTLSKeepsFewBytesOfAHandshakeThatIsNotComplete(t *testing.T) {
	r := newRotated(t)
	f := start(t, spanRules, func(o *Options) { o.TLS = r.keeper.Server(nil) })
	conn, err := net.Dial("tcp", f.serveOn(t, "tcp", "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	record := append([]byte{22, 3, 1, 16384 >> 8, 0}, make([]byte, 16384)...) // of a ClientHello of 65535 bytes
	copy(record[5:], []byte{1, 0, 255, 255})
	go func() {
		for range 4 { // 4 bytes are missing in the end
			_, _ = conn.Write(record)
		}
	}()
	answer, err := io.ReadAll(conn) // waits for the end of the connection: 10 seconds without the bound
	if len(answer) > 100 {
		t.Errorf("the answer has %d bytes: %v", len(answer), err)
	}
	f.server.GracefulStop()
	if log := f.logs.Take(); !strings.Contains(log, "24576 bytes") {
		t.Errorf("the log does not say 24576 bytes:\n%s", log)
	}
}

func TestAConnectionWithTLSCarriesManyRequests(t *testing.T) {
	r := newRotated(t)
	f := start(t, spanRules, func(o *Options) { o.TLS = r.keeper.Server(nil) })
	address := f.serveOn(t, "tcp", "127.0.0.1:0")
	for name, call := range map[string]func(context.Context, *grpc.ClientConn) error{
		"ShouldRateLimit": askOn,
		"health Check": func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := healthgrpc.NewHealthClient(conn).Check(ctx, new(healthgrpc.HealthCheckRequest))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(r.client(t, r.ca.Issue(t, "envoy").TLS(t))))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for range 1000 { // each has some 80 bytes
				if err := call(t.Context(), conn); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
