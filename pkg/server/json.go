package server

import (
	"errors"
	"io"
	"net/http"
	"runtime/debug"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// json answers a RateLimitRequest in the JSON form of protobuf with a RateLimitResponse: 200, 429 when it is over limit, 400
// when the request is not valid, 413 when it is too large. It takes the way of ShouldRateLimit, through its bytes.
func (s *Server) json(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.options.MaxRequestBytes)))
	if err != nil {
		code := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			code = http.StatusRequestEntityTooLarge
		}
		text(w, code, err.Error())
		return
	}
	request := new(ratelimitv3.RateLimitRequest)
	if err := protojson.Unmarshal(body, request); err != nil {
		text(w, http.StatusBadRequest, "not a RateLimitRequest: "+err.Error())
		return
	}
	message, err := proto.Marshal(request)
	if err != nil {
		text(w, http.StatusBadRequest, "not a RateLimitRequest: "+err.Error())
		return
	}
	response := new(ratelimitv3.RateLimitResponse)
	if err := s.exchange(r, message, response); err != nil {
		fault := status.Convert(err)
		text(w, httpCode(fault.Code()), fault.Message())
		return
	}
	answer, err := protojson.Marshal(response)
	if err != nil {
		text(w, http.StatusInternalServerError, textPanic)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if response.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(answer)
}

// exchange decides the request in message and decodes the response. The error is a gRPC status.
func (s *Server) exchange(r *http.Request, message []byte, response *ratelimitv3.RateLimitResponse) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = s.service.faults.status(&panicError{v, debug.Stack()})
		}
	}()
	c := new(call)
	c.decode(message)
	ctx := r.Context()
	if s.options.Tracer != nil {
		ctx = s.service.withParent(ctx, propagation.HeaderCarrier(r.Header))
	}
	if err := s.service.answer(ctx, c); err != nil {
		return s.service.faults.status(err)
	}
	return proto.Unmarshal(c.answer, response)
}

// httpCode returns what HTTP calls the codes of package status.
func httpCode(c codes.Code) int {
	switch c {
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded, codes.Canceled:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}
