// Package compare asks two rate limit services the same requests, and says where their answers
// differ.
package compare

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// Request is a request of Envoy.
type Request = ratelimitv3.RateLimitRequest

// A Service answers a request.
type Service func(context.Context, *Request) (*ratelimitv3.RateLimitResponse, error)

// answerWithin bounds the wait for one answer.
const answerWithin = 5 * time.Second

// Dial returns the service at host:port of gRPC without TLS, and a function that ends the
// connection.
func Dial(address string) (Service, func(), error) {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	client := ratelimitv3.NewRateLimitServiceClient(connection)
	return func(ctx context.Context, r *Request) (*ratelimitv3.RateLimitResponse, error) {
		within, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		return client.ShouldRateLimit(within, r, grpc.WaitForReady(true)) // a service may be starting
	}, func() { connection.Close() }, nil
}

// A Difference is a request that the two services answer differently.
type Difference struct {
	Request  *Request
	Old, New string // the answers, for people
}

// windowMargin is how long before the end of a second no request begins. Windows end with seconds.
const windowMargin = 50 * time.Millisecond

// Ask asks both services, the old one first, both in the same second if they answer soon. crossed
// says that a second ended meanwhile: then a window may have ended between the two answers. The
// difference is nil for equal answers.
//
// Equal are the codes, limits and remaining hits of all descriptors, and the response headers. A
// reset may differ by a second. Dynamic metadata is not compared. Two errors are equal.
func Ask(ctx context.Context, older, newer Service, r *Request) (difference *Difference, crossed bool, err error) {
	if err := awaitSecond(ctx); err != nil {
		return nil, false, err
	}
	begun := time.Now()
	a, errA := older(ctx, r)
	b, errB := newer(ctx, r)
	crossed = time.Now().Unix() != begun.Unix()
	if err := ctx.Err(); err != nil {
		return nil, crossed, err
	}
	if errA != nil && errB != nil || errA == nil && errB == nil && same(a, b) {
		return nil, crossed, nil
	}
	return &Difference{Request: r, Old: text(a, errA), New: text(b, errB)}, crossed, nil
}

// awaitSecond waits for the next second if this one ends soon.
func awaitSecond(ctx context.Context) error {
	now := time.Now()
	left := now.Truncate(time.Second).Add(time.Second).Sub(now)
	if left > windowMargin {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type status = ratelimitv3.RateLimitResponse_DescriptorStatus

func same(a, b *ratelimitv3.RateLimitResponse) bool {
	if a.GetOverallCode() != b.GetOverallCode() || len(a.GetStatuses()) != len(b.GetStatuses()) ||
		len(a.GetResponseHeadersToAdd()) != len(b.GetResponseHeadersToAdd()) {
		return false
	}
	for i, s := range a.GetStatuses() {
		if !sameStatus(s, b.GetStatuses()[i]) {
			return false
		}
	}
	for i, h := range a.GetResponseHeadersToAdd() {
		other := b.GetResponseHeadersToAdd()[i]
		if h.GetKey() != other.GetKey() || h.GetValue() != other.GetValue() && !(isReset(a, h.GetValue()) && isReset(b, other.GetValue())) {
			return false
		}
	}
	return true
}

func sameStatus(a, b *status) bool {
	if a.GetCode() != b.GetCode() || a.GetLimitRemaining() != b.GetLimitRemaining() ||
		!proto.Equal(a.GetCurrentLimit(), b.GetCurrentLimit()) || (a.GetDurationUntilReset() == nil) != (b.GetDurationUntilReset() == nil) {
		return false
	}
	return (a.GetDurationUntilReset().AsDuration() - b.GetDurationUntilReset().AsDuration()).Abs() <= time.Second
}

// isReset reports whether the value of a header is the reset of a status. The resets themselves are
// compared elsewhere.
func isReset(r *ratelimitv3.RateLimitResponse, value string) bool {
	for _, s := range r.GetStatuses() {
		if s.GetDurationUntilReset() != nil && strconv.FormatInt(s.GetDurationUntilReset().GetSeconds(), 10) == value {
			return true
		}
	}
	return false
}

// text is an answer in one line.
func text(r *ratelimitv3.RateLimitResponse, err error) string {
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	b.WriteString(r.GetOverallCode().String())
	for _, s := range r.GetStatuses() {
		fmt.Fprintf(&b, " | %s, ", s.GetCode())
		l := s.GetCurrentLimit()
		if l == nil {
			b.WriteString("no limit")
			continue
		}
		if l.GetName() != "" {
			fmt.Fprintf(&b, "%s: ", l.GetName())
		}
		fmt.Fprintf(&b, "%d left of %d per %s", s.GetLimitRemaining(), l.GetRequestsPerUnit(), strings.ToLower(l.GetUnit().String()))
		if d := s.GetDurationUntilReset(); d != nil {
			fmt.Fprintf(&b, ", reset in %v", d.AsDuration())
		}
	}
	for _, h := range r.GetResponseHeadersToAdd() {
		fmt.Fprintf(&b, " | %s: %s", h.GetKey(), h.GetValue())
	}
	return b.String()
}

// Text is the request of a difference in one line.
func (d *Difference) Text() string {
	var b strings.Builder
	b.WriteString(d.Request.GetDomain())
	for _, one := range d.Request.GetDescriptors() {
		b.WriteString(" | ")
		for i, e := range one.GetEntries() {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(e.GetKey() + "=" + e.GetValue())
		}
	}
	if d.Request.GetHitsAddend() > 1 {
		fmt.Fprintf(&b, " | hits %d", d.Request.GetHitsAddend())
	}
	return b.String()
}
