package server

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// failing is a store that cannot.
type failing struct {
	err error
	bug any // to panic with
}

func (f *failing) Take(context.Context, []store.Charge, []algorithms.Decision) (bool, error) {
	if f.bug != nil {
		return false, boom(f.bug)
	}
	return false, f.err
}

// boom panics.
func boom(bug any) error {
	panic(bug) //nolint:forbidigo // the test is about this
}

func (f *failing) Peek(context.Context, []store.Charge, []algorithms.Decision) error { return f.err }

func (f *failing) Reset(context.Context, []store.Charge) (int, error) { return 0, f.err }

// raw sends and receives bytes as they are. Each message is a *[]byte.
type raw struct{}

var errNotBytes = errors.New("not a *[]byte")

func (raw) Marshal(v any) ([]byte, error) {
	if b, ok := v.(*[]byte); ok {
		return *b, nil
	}
	return nil, errNotBytes
}

func (raw) Unmarshal(data []byte, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = bytes.Clone(data)
		return nil
	}
	return errNotBytes
}

func (raw) Name() string { return "proto" }

func (f *fixture) send(t *testing.T, message []byte) error {
	t.Helper()
	return f.conn.Invoke(t.Context(), ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, &message, new([]byte), grpc.ForceCodec(raw{}))
}

func TestEveryErrorHasItsCode(t *testing.T) {
	one := &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: asks(descriptor("minute", "a"))}
	tests := []struct {
		name    string
		store   failing
		request *ratelimitv3.RateLimitRequest
		code    codes.Code
		message string
		logged  []string
	}{
		{
			"no_domain",
			failing{},
			&ratelimitv3.RateLimitRequest{Descriptors: one.GetDescriptors()},
			codes.InvalidArgument, "rate limit domain must not be empty", nil,
		},
		{
			"no_descriptors",
			failing{},
			&ratelimitv3.RateLimitRequest{Domain: "edge"},
			codes.InvalidArgument, "rate limit descriptor list must not be empty", nil,
		},
		{"deadline", failing{err: context.DeadlineExceeded}, one, codes.DeadlineExceeded, "context deadline exceeded", nil},
		{"canceled", failing{err: context.Canceled}, one, codes.Canceled, "context canceled", nil},
		{
			"store",
			failing{err: errors.New("redis: secret address is down")},
			one,
			codes.Unavailable, textStore,
			[]string{"store failed", "redis: secret address is down"},
		},
		{"panic", failing{bug: "secret bug"}, one, codes.Internal, textPanic, []string{"panic while answering", "secret bug", "status_test.go"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startOn(t, storetest.Of(&test.store), everything, nil)
				_, err := f.client.ShouldRateLimit(t.Context(), test.request)
				if got := status.Convert(err); got.Code() != test.code || got.Message() != test.message {
					t.Errorf("ShouldRateLimit: got %v; want %v: %s", err, test.code, test.message)
				}
				logged := f.logs.Take()
				for _, want := range test.logged {
					if !strings.Contains(logged, want) {
						t.Errorf("log: got %q; want %q in it", logged, want)
					}
				}
				if test.logged == nil && logged != "" {
					t.Errorf("log: got %q; want nothing", logged)
				}
				if _, err := f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: asks(descriptor("nothing", ""))}); err != nil {
					t.Errorf("the next request: got %v; want an answer", err)
				}
			})
		})
	}
}

func TestARequestBeforeTheFirstRulesIsUnavailable(t *testing.T) {
	once(t)
	err := new(statusMapper).status(limiter.ErrNoRules)
	if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != "no rate limit configuration loaded" {
		t.Errorf("got %v", err)
	}
}

func TestInvalidRequestsNameTheirFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		_, err := f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{
			Descriptors: asks(descriptor("minute", "a"), descriptor("minute", "a", "", "b"), override(1, 0, 0, "minute", "a")),
		})
		want := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: "domain", Description: "rate limit domain must not be empty"},
			{Field: "descriptors[1].entries[1].key", Description: "must not be empty"},
			{Field: "descriptors[2].limit.unit", Description: "0 is not a unit, must be SECOND (1), MINUTE, HOUR, DAY, MONTH, YEAR or WEEK (7)"},
		}}
		if diff := cmp.Diff([]any{want}, status.Convert(err).Details(), protocmp.Transform()); diff != "" {
			t.Errorf("details (-want +got):\n%s", diff)
		}
	})
}

func TestBytesThatAreNoRequestAreTheSendersMistake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		got := status.Convert(f.send(t, []byte("\x0a\x01\xff")))
		if want := "not a RateLimitRequest: domain: invalid UTF-8"; got.Code() != codes.InvalidArgument || got.Message() != want {
			t.Errorf("ShouldRateLimit: got %v; want InvalidArgument: %s", got.Err(), want)
		}
	})
}

func TestLargeMessages(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.MaxRequestBytes = 100_000 })
		f.ask(t, descriptor("minute", strings.Repeat("v", 99_000))) // more than one read, and than one frame
		_, err := f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{
			Domain: "edge", Descriptors: asks(descriptor("minute", strings.Repeat("v", 100_000))),
		})
		if got := status.Code(err); got != codes.ResourceExhausted {
			t.Errorf("a message above the bound: got %v; want ResourceExhausted", err)
		}
	})
}

func TestAPastDeadlineIsNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		c := &call{ctx: ctx}
		c.decode(join(bytesField(1, []byte("edge")), bytesField(2, bytesField(1, bytesField(1, []byte("minute")), bytesField(2, []byte("a"))))), time.Now())
		err := f.server.service.answer(c)
		if got := status.Code(err); got != codes.DeadlineExceeded {
			t.Errorf("answer: got %v; want DeadlineExceeded", err)
		}
		if got := f.ask(t, hits(0, "minute", "a")).GetStatuses()[0].GetLimitRemaining(); got != 2 {
			t.Errorf("limit_remaining after: got %d; want 2", got)
		}
	})
}

func TestFailuresAreLoggedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startOn(t, storetest.Of(&failing{err: errors.New("down")}), everything, nil)
		lines := func() int { return strings.Count(f.logs.Take(), "store failed") }
		for range 5 {
			_, _ = f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: asks(descriptor("minute", "a"))})
		}
		if got := lines(); got != 1 {
			t.Errorf("lines for 5 failures at once: got %d; want 1", got)
		}
		time.Sleep(time.Second)
		_, _ = f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: asks(descriptor("minute", "a"))})
		if got := f.logs.Take(); strings.Count(got, "store failed") != 1 || !strings.Contains(got, "not_logged=4") {
			t.Errorf("log a second later: got %q; want one line that says not_logged=4", got)
		}
	})
}
