package drive

import (
	"context"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

func TestARecorderRecordsEachRequestOnce(t *testing.T) {
	request, err := Request("d", []Entry{{"a", "1"}})
	if err != nil {
		t.Fatal(err)
	}
	for code, want := range map[ratelimitv3.RateLimitResponse_Code]Result{
		ratelimitv3.RateLimitResponse_OK: Allowed, ratelimitv3.RateLimitResponse_OVER_LIMIT: Denied,
	} {
		r := NewRecorder(serve(t, &service{code: code}), time.Minute, ShouldRateLimit())
		n := int32(0)
		err := r.Closed(t.Context(), 30, func() (int32, []byte, bool) {
			n++
			return n, request, n <= 5000
		})
		all, failed := r.Records()
		if err != nil || failed != nil || len(all) != 5000 {
			t.Fatalf("%d records, %v, %v; want 5000", len(all), err, failed)
		}
		for i, o := range all {
			if o.Tag != int32(i+1) || o.Result != want || o.Sent > o.Received || o.Sent < time.Now().Add(-time.Hour).UnixNano() {
				t.Fatalf("record %d: %+v; want the result %d", i, o, want)
			}
		}
	}
}

func TestARequestWithoutAServiceIsUnreached(t *testing.T) {
	r := NewRecorder("127.0.0.1:1", time.Minute, ShouldRateLimit())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Stay(ctx)
	}()
	r.Send([]int32{7, 8}, [][]byte{nil, nil})
	cancel()
	<-ended
	all, err := r.Records()
	if len(all) != 2 || err != nil || all[1].Tag != 8 || all[1].Result != Unreached || r.Waiting() != 0 {
		t.Errorf("got %+v, %v; want two requests that reached nobody", all, err)
	}
}
