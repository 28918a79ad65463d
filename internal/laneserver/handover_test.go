package laneserver

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestAConnectionThatBeginsWithAnotherMethodIsHandedOver(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		conn := f.dial(t)
		h := healthgrpc.NewHealthClient(conn)
		for range 3 {
			got, err := h.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: "echo"})
			if err != nil || got.GetStatus() != healthgrpc.HealthCheckResponse_SERVING {
				t.Fatalf("got %v, %v; want SERVING", got, err)
			}
		}
		for len(f.all()) > 0 { // the goroutine that handed it over ends
			time.Sleep(time.Millisecond)
		}
	})
}

func TestMethodsMixOnOneConnection(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		close(f.release)
		conn := f.dial(t)
		if _, err := ask(t.Context(), conn, "at once"); err != nil {
			t.Fatal(err)
		}
		var asking sync.WaitGroup
		for range 20 {
			for _, text := range []string{"at once", "later"} {
				asking.Go(func() {
					if got, err := ask(t.Context(), conn, text); err != nil || got != text {
						t.Errorf("got %q, %v", got, err)
					}
				})
			}
			asking.Go(func() {
				if _, err := healthgrpc.NewHealthClient(conn).Check(t.Context(), &healthgrpc.HealthCheckRequest{}); err != nil {
					t.Error(err)
				}
			})
			asking.Go(func() {
				got := new(wrapperspb.StringValue)
				text := strings.Repeat("x", 50_000)
				if err := conn.Invoke(t.Context(), "/test.Echo/Other", wrapperspb.String(text), got); err != nil || got.GetValue() != text {
					t.Errorf("got %d bytes, %v", len(got.GetValue()), err)
				}
			})
		}
		asking.Wait()
		if got := f.all(); len(got) != 1 || got[0].Answered() < 41 {
			t.Errorf("connections: got %d, want 1 with all answers", len(got))
		}
		watching, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch, err := healthgrpc.NewHealthClient(conn).Watch(watching, &healthgrpc.HealthCheckRequest{Service: "echo"})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []healthgrpc.HealthCheckResponse_ServingStatus{healthgrpc.HealthCheckResponse_SERVING, healthgrpc.HealthCheckResponse_NOT_SERVING} {
			if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
				t.Fatalf("got %v, %v; want %v", got, err, want)
			}
			f.health.SetServingStatus("echo", healthgrpc.HealthCheckResponse_NOT_SERVING)
		}
	})
}
