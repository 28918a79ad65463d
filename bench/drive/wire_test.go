package drive

import (
	"testing"
	"time"

	"google.golang.org/grpc"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Each of 20 000 requests moves the window of the connection, which grpc-go opens again and again.
func TestAWireReadsTheAnswerOfEachRequest(t *testing.T) {
	w, err := DialWire(t.Context(), serve(t, &service{code: ratelimitv3.RateLimitResponse_OK}), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	request, err := Request("d", []Entry{{"a", "1"}})
	if err != nil {
		t.Fatal(err)
	}
	open := make(map[uint32]bool)
	for range 1000 {
		batch := make([][]byte, 20)
		for i := range batch {
			batch[i] = request
		}
		if err := w.Send(func(stream uint32) { open[stream] = true }, batch...); err != nil {
			t.Fatal(err)
		}
		for len(open) > 0 {
			err := w.Receive(func(stream uint32, err error) {
				if err != nil || !open[stream] {
					t.Fatalf("stream %d, open: %v; got %v", stream, open[stream], err)
				}
				delete(open, stream)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// grpc-go resets a stream above its bound with REFUSED_STREAM.
func TestAWireOpensAsManyStreamsAsTheServerTakes(t *testing.T) {
	const most, all = 3, 3000
	request, err := Request("d", []Entry{{"a", "1"}})
	if err != nil {
		t.Fatal(err)
	}
	w, err := DialWire(t.Context(), serve(t, &service{code: ratelimitv3.RateLimitResponse_OK}, grpc.MaxConcurrentStreams(most)), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Send(nil, request); err != nil { // the answer comes after the settings
		t.Fatal(err)
	}
	answered, begun := 0, make(chan struct{})
	received := make(chan error, 1)
	go func() {
		for answered < all {
			err := w.Receive(func(_ uint32, err error) {
				if answered++; answered == 1 {
					close(begun)
				}
				if err != nil {
					t.Errorf("answer %d: %v", answered, err)
				}
			})
			if err != nil {
				received <- err
				return
			}
		}
		received <- nil
	}()
	<-begun
	for sent := 1; sent < all; sent++ {
		if err := w.Send(nil, request); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-received; err != nil {
		t.Error(err)
	}
}

func TestAWireReportsAnswersThatAreNoPermission(t *testing.T) {
	address := serve(t, &service{code: ratelimitv3.RateLimitResponse_OVER_LIMIT})
	request, err := Request("d", []Entry{{"a", "1"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, timeout := range map[string]time.Duration{"over limit": time.Minute, "too late": 0} {
		w, err := DialWire(t.Context(), address, timeout)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Send(nil, request); err != nil {
			t.Fatal(err)
		}
		var got error
		for got == nil {
			ended := false
			if err := w.Receive(func(_ uint32, err error) { got, ended = err, true }); err != nil {
				got = err
			}
			if ended && got == nil {
				t.Fatalf("%s: got no error", name)
			}
		}
		t.Logf("%s: %v", name, got)
	}
}
