package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/pkg/limiter"
)

// The texts for clients about failures of this server. The log has the cause.
const (
	textPanic = "internal error"
	textStore = "the store of rate limits cannot answer now"
)

type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// statusMapper turns errors into gRPC statuses, and logs the failures of this server:
//
//	a malformed message                 InvalidArgument   the mistake
//	*limiter.InvalidError               InvalidArgument   the mistakes, and google.rpc.BadRequest
//	context.DeadlineExceeded            DeadlineExceeded
//	context.Canceled                    Canceled
//	limiter.ErrNoRules                  Unavailable       the text of the error
//	a panic                             Internal          fixed text; logged with the stack
//	any other error, from the store     Unavailable       fixed text; logged
//
// Safe for concurrent use.
type statusMapper struct {
	logger *slog.Logger
	panics loglimit.Limiter
	store  loglimit.Limiter
}

func (m *statusMapper) status(err error) error {
	if invalid, ok := errors.AsType[*limiter.InvalidError](err); ok {
		return badRequest(invalid)
	}
	if malformed, ok := errors.AsType[*malformedError](err); ok {
		return status.Error(codes.InvalidArgument, malformed.Error())
	}
	if panicked, ok := errors.AsType[*panicError](err); ok {
		if missed, ok := m.panics.Due(time.Second); ok {
			m.logger.LogAttrs(context.Background(), slog.LevelError, "panic while answering a request",
				slog.Any("panic", panicked.value), slog.String("stack", string(panicked.stack)), slog.Uint64("not_logged", missed))
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
	if missed, ok := m.store.Due(time.Second); ok {
		m.logger.LogAttrs(context.Background(), slog.LevelError, "store failed",
			slog.Any("error", err), slog.Uint64("not_logged", missed))
	}
	return status.Error(codes.Unavailable, textStore)
}

// recovered turns a panic into an error. Functions must defer it directly.
func (m *statusMapper) recovered(err *error) {
	if v := recover(); v != nil {
		*err = m.status(&panicError{v, debug.Stack()})
	}
}

func badRequest(invalid *limiter.InvalidError) error {
	details := new(errdetails.BadRequest)
	var texts []string
	for _, v := range invalid.Violations {
		path, text := fieldPath(v), v.Description
		details.FieldViolations = append(details.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: path, Description: text})
		if v.Descriptor >= 0 {
			text = path + ": " + text
		}
		texts = append(texts, text)
	}
	s := status.New(codes.InvalidArgument, strings.Join(texts, "; "))
	if detailed, err := s.WithDetails(details); err == nil {
		s = detailed
	}
	return s.Err()
}

// fieldPath returns the field of a violation in Envoy's RateLimitRequest:
// "descriptors[0].entries[1].key".
func fieldPath(v limiter.Violation) string {
	var name string
	switch v.Field {
	case limiter.FieldDomain, limiter.FieldDescriptors:
		return v.Field.String()
	case limiter.FieldKey:
		name = fmt.Sprintf("entries[%d].key", v.Entry)
	case limiter.FieldUsage:
		name = fmt.Sprintf("entries[%d].value", v.Entry)
	case limiter.FieldHits:
		name = "hits_addend"
	case limiter.FieldOverride:
		name = "limit"
	case limiter.FieldOverrideRequests:
		name = "limit.requests_per_unit"
	case limiter.FieldOverrideUnit:
		name = "limit.unit"
	case limiter.FieldOverrideMultiplier:
		name = "limit.unit_multiplier"
	}
	return fmt.Sprintf("descriptors[%d].%s", v.Descriptor, name)
}
