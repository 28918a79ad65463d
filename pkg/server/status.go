package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/pkg/limiter"
)

// What clients see of faults that are ours. The cause is in the log.
const (
	textPanic = "internal error"
	textStore = "the store of rate limits cannot answer now"
)

// panicError is a panic that was caught.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// faults makes status codes of errors and logs what is behind those that are ours. This is the only place that makes codes:
//
//	bytes that are not a request         InvalidArgument   what is wrong
//	*limiter.InvalidError                InvalidArgument   what is wrong, and google.rpc.BadRequest
//	context.DeadlineExceeded             DeadlineExceeded
//	context.Canceled                     Canceled
//	limiter.ErrNoRules                   Unavailable       as it is
//	a panic                              Internal          fixed text; logged with the stack
//	anything else, which is the store's  Unavailable       fixed text; logged
//
// Safe for concurrent use.
type faults struct {
	logger *slog.Logger
	panics rare
	store  rare
}

// status returns the error as a gRPC status, logged where that is due.
func (f *faults) status(err error) error {
	if invalid, ok := errors.AsType[*limiter.InvalidError](err); ok {
		return badRequest(invalid)
	}
	if malformed, ok := errors.AsType[*malformedError](err); ok {
		return status.Error(codes.InvalidArgument, malformed.Error())
	}
	if caught, ok := errors.AsType[*panicError](err); ok {
		if missed, ok := f.panics.due(); ok {
			f.logger.LogAttrs(context.Background(), slog.LevelError, "panic while answering a request",
				slog.Any("panic", caught.value), slog.String("stack", string(caught.stack)), slog.Uint64("not_logged", missed))
		}
		return status.Error(codes.Internal, textPanic)
	}
	switch {
	case errors.Is(err, limiter.ErrNoRules):
		return status.Error(codes.Unavailable, limiter.ErrNoRules.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, context.Canceled.Error())
	}
	if missed, ok := f.store.due(); ok {
		f.logger.LogAttrs(context.Background(), slog.LevelError, "store failed",
			slog.Any("error", err), slog.Uint64("not_logged", missed))
	}
	return status.Error(codes.Unavailable, textStore)
}

// badRequest names every field that is wrong.
func badRequest(invalid *limiter.InvalidError) error {
	s := status.New(codes.InvalidArgument, invalid.Error())
	details := new(errdetails.BadRequest)
	for _, v := range invalid.Violations {
		details.FieldViolations = append(details.FieldViolations,
			&errdetails.BadRequest_FieldViolation{Field: v.Field, Description: v.Description})
	}
	if detailed, err := s.WithDetails(details); err == nil {
		s = detailed
	}
	return s.Err()
}

// rare lets a log line through once a second and counts the others. The zero value is ready; safe for concurrent use.
type rare struct {
	last   atomic.Int64 // Unix nanoseconds of the last line
	missed atomic.Uint64
}

// due reports whether to log now, and how many lines were left out since the last.
func (r *rare) due() (missed uint64, ok bool) {
	now, last := time.Now().UnixNano(), r.last.Load()
	if last != 0 && now >= last && now-last < int64(time.Second) || !r.last.CompareAndSwap(last, now) {
		r.missed.Add(1)
		return 0, false
	}
	return r.missed.Swap(0), true
}
