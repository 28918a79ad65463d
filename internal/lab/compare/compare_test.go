package compare

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{
			"internal/metrics", "internal/ranges", "internal/spelling", "internal/timespan", "internal/top", "internal/zones", "internal/snapshots",
			"internal/lockfile", "internal/regular", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "pkg/store/memstore",
		},
		Never: []string{"github.com/redis", "github.com/spf13"},
	})
}

func answer() *ratelimitv3.RateLimitResponse {
	return &ratelimitv3.RateLimitResponse{
		OverallCode: ratelimitv3.RateLimitResponse_OK,
		Statuses: []*status{{
			Code:               ratelimitv3.RateLimitResponse_OK,
			CurrentLimit:       &ratelimitv3.RateLimitResponse_RateLimit{RequestsPerUnit: 9, Unit: ratelimitv3.RateLimitResponse_RateLimit_MINUTE},
			LimitRemaining:     7,
			DurationUntilReset: durationpb.New(30 * time.Second),
		}},
		ResponseHeadersToAdd: []*corev3.HeaderValue{{Key: "left", Value: "7"}, {Key: "reset", Value: "30"}},
	}
}

// constant is a service with one answer.
func constant(r *ratelimitv3.RateLimitResponse, err error) Service {
	return func(context.Context, *Request) (*ratelimitv3.RateLimitResponse, error) {
		return r, err
	}
}

func TestAnswersDifferInWhatAClientSees(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*ratelimitv3.RateLimitResponse)
		same   bool
	}{
		"nothing":      {func(*ratelimitv3.RateLimitResponse) {}, true},
		"overall code": {func(r *ratelimitv3.RateLimitResponse) { r.OverallCode = ratelimitv3.RateLimitResponse_OVER_LIMIT }, false},
		"code":         {func(r *ratelimitv3.RateLimitResponse) { r.Statuses[0].Code = ratelimitv3.RateLimitResponse_OVER_LIMIT }, false},
		"remaining":    {func(r *ratelimitv3.RateLimitResponse) { r.Statuses[0].LimitRemaining = 8 }, false},
		"limit":        {func(r *ratelimitv3.RateLimitResponse) { r.Statuses[0].CurrentLimit.RequestsPerUnit = 8 }, false},
		"unit":         {func(r *ratelimitv3.RateLimitResponse) { r.Statuses[0].CurrentLimit.Unit++ }, false},
		"no limit":     {func(r *ratelimitv3.RateLimitResponse) { r.Statuses[0].CurrentLimit = nil }, false},
		"no reset":     {func(r *ratelimitv3.RateLimitResponse) { r.Statuses[0].DurationUntilReset = nil }, false},
		"reset, a second": {func(r *ratelimitv3.RateLimitResponse) {
			r.Statuses[0].DurationUntilReset, r.ResponseHeadersToAdd[1].Value = durationpb.New(29*time.Second), "29"
		}, true},
		"reset, two seconds": {func(r *ratelimitv3.RateLimitResponse) {
			r.Statuses[0].DurationUntilReset = durationpb.New(28 * time.Second)
		}, false},
		"a status more":       {func(r *ratelimitv3.RateLimitResponse) { r.Statuses = append(r.Statuses, r.Statuses[0]) }, false},
		"a header more":       {func(r *ratelimitv3.RateLimitResponse) { r.ResponseHeadersToAdd = r.ResponseHeadersToAdd[:1] }, false},
		"a value of a header": {func(r *ratelimitv3.RateLimitResponse) { r.ResponseHeadersToAdd[0].Value = "8" }, false},
		"a name of a header":  {func(r *ratelimitv3.RateLimitResponse) { r.ResponseHeadersToAdd[0].Key = "rest" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			other := answer()
			test.change(other)
			for _, pair := range [][2]*ratelimitv3.RateLimitResponse{{answer(), other}, {other, answer()}} {
				d, _, err := Ask(t.Context(), constant(pair[0], nil), constant(pair[1], nil), Nobody("m"))
				if must.Do(t, err); (d == nil) != test.same {
					t.Errorf("got %+v, want the same: %v", d, test.same)
				}
			}
		})
	}
}

func TestAnErrorDiffersFromAnAnswer(t *testing.T) {
	broken := errors.New("broken")
	d, _, err := Ask(t.Context(), constant(nil, broken), constant(answer(), nil), Nobody("m"))
	if must.Do(t, err); d == nil || d.Old != "broken" || d.New != "OK | OK, 7 left of 9 per minute, reset in 30s | left: 7 | reset: 30" || d.Text() != "m | m=m" {
		t.Errorf("got %+v", d)
	}
	if d, _, err = Ask(t.Context(), constant(nil, broken), constant(nil, errors.New("also")), Nobody("m")); d != nil || err != nil {
		t.Errorf("two errors: got %+v, %v", d, err)
	}
}

// No request begins shortly before the end of a second, and an end that comes nevertheless is told.
func TestBothAreAskedInOneSecond(t *testing.T) {
	for name, test := range map[string]struct {
		at, slow time.Duration // of the second; of an answer
		begins   time.Duration
		crossed  bool
	}{
		"in the middle":     {at: 500 * time.Millisecond, begins: 500 * time.Millisecond},
		"before its end":    {at: 990 * time.Millisecond, begins: time.Second},
		"with slow answers": {at: 900 * time.Millisecond, slow: 200 * time.Millisecond, begins: 900 * time.Millisecond, crossed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now().Truncate(time.Second)
				time.Sleep(test.at)
				var asked time.Duration
				older := func(context.Context, *Request) (*ratelimitv3.RateLimitResponse, error) {
					asked = time.Since(begun)
					time.Sleep(test.slow)
					return answer(), nil
				}
				d, crossed, err := Ask(t.Context(), older, constant(answer(), nil), Nobody("m"))
				if err != nil || d != nil || crossed != test.crossed || asked != test.begins {
					t.Errorf("got %+v, %v, crossed %v, asked at %v", d, err, crossed, asked)
				}
			})
		})
	}
}

func TestAnEndedContextIsNoDifference(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d, _, err := Ask(ctx, constant(nil, ctx.Err()), constant(answer(), nil), Nobody("m")); d != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v", d, err)
	}
}

func TestAnAnswerNamesItsLimit(t *testing.T) {
	r, ok := proto.Clone(answer()).(*ratelimitv3.RateLimitResponse)
	if !ok {
		t.Fatal("not a response")
	}
	r.Statuses[0].CurrentLimit.Name = "search"
	if got := text(r, nil); !strings.HasPrefix(got, "OK | OK, search: 7 left of 9 per minute") {
		t.Errorf("got %q", got)
	}
}
