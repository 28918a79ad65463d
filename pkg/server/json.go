package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/internal/wire/web"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// JSON returns the page /json, or nil where Options.JSON has none. The page answers a
// RateLimitRequest in protobuf's JSON with a RateLimitResponse. The status is 200, 429 over limit,
// 400 for an invalid request, 413 for a large one, and 503 when too many are under way. A request
// that Options.JSON does not allow gets 403, 415 or 421. The request takes the way of
// ShouldRateLimit. With zeros the answer shows a limitRemaining of 0, which protobuf's JSON, and
// envoyproxy/ratelimit, leave out. The caller answers panics.
func (s *Server) JSON(zeros bool) http.HandlerFunc {
	o := s.options.JSON
	if o.From == JSONOff {
		return nil
	}
	bound := int64(s.options.MaxRequestBytes)
	large := wire.NewBudget(max(jsonLarge, bound))
	answer := s.answerBody(zeros, max(jsonBytes, bound))
	return web.AtMost(jsonArriving, func(w http.ResponseWriter, r *http.Request) {
		if no := o.refuse(r); no != nil {
			web.Text(w, no.code, no.text)
			return
		}
		body, err := readBody(w, r, bound, large)
		switch {
		case errors.Is(err, errBusy):
			web.Busy(w)
		case isTooLarge(err):
			web.Text(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is too large: at most %d bytes are allowed", bound))
		case err != nil:
			web.Text(w, http.StatusBadRequest, err.Error())
		default:
			answer(w, r, body)
		}
	})
}

// answerBody returns a function that answers a request whose body has arrived. The requests under
// way have at most so many bytes together.
func (s *Server) answerBody(zeros bool, most int64) func(w http.ResponseWriter, r *http.Request, body []byte) {
	o := s.options.JSON
	decided := make(web.Places, jsonRequests)
	bodies, objects := wire.NewBudget(most), wire.NewBudget(jsonObjects)
	return func(w http.ResponseWriter, r *http.Request, body []byte) {
		if !decided.Take() {
			web.Busy(w)
			return
		}
		defer decided.Give()
		taken, ok := bodies.Take(r.Context(), int64(len(body)))
		if !ok {
			web.Busy(w)
			return
		}
		defer bodies.Give(taken)
		n := countObjects(body)
		made, ok := objects.Take(r.Context(), int64(n))
		if !ok {
			web.Busy(w)
			return
		}
		defer objects.Give(made)
		request, err := parse(body, n)
		if err != nil {
			web.Text(w, http.StatusBadRequest, "not a RateLimitRequest: "+err.Error())
			return
		}
		if err := o.refuseContent(request); err != nil {
			web.Text(w, http.StatusForbidden, err.Error())
			return
		}
		s.answerJSON(w, r, request, zeros)
	}
}

// answerJSON decides a request and writes the answer.
func (s *Server) answerJSON(w http.ResponseWriter, r *http.Request, request *ratelimitv3.RateLimitRequest, zeros bool) {
	response := new(ratelimitv3.RateLimitResponse)
	if err := s.exchange(r, request, response); err != nil {
		failed := status.Convert(err)
		web.Text(w, httpCode(failed.Code()), failed.Message())
		return
	}
	answer, err := protojson.Marshal(response)
	if err == nil && zeros {
		answer, err = withZeros(answer)
	}
	if err != nil {
		web.Text(w, http.StatusInternalServerError, textPanic)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if response.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(answer)
}

// withZeros adds a limitRemaining of 0 to every status of a RateLimitResponse that has a limit and
// none left.
func withZeros(answer []byte) ([]byte, error) {
	var response map[string]json.RawMessage
	var statuses []map[string]json.RawMessage
	if err := json.Unmarshal(answer, &response); err != nil {
		return nil, err
	}
	if response["statuses"] == nil {
		return answer, nil
	}
	if err := json.Unmarshal(response["statuses"], &statuses); err != nil {
		return nil, err
	}
	for _, s := range statuses {
		if s["currentLimit"] != nil && s["limitRemaining"] == nil {
			s["limitRemaining"] = json.RawMessage("0")
		}
	}
	var err error
	if response["statuses"], err = json.Marshal(statuses); err != nil {
		return nil, err
	}
	return json.Marshal(response)
}

func (s *Server) exchange(r *http.Request, request *ratelimitv3.RateLimitRequest, response *ratelimitv3.RateLimitResponse) (err error) {
	c := &call{begun: time.Now(), ctx: r.Context(), client: browsing{r}}
	defer s.service.survive(c, &err)
	convert(request, &c.request)
	if s.options.Tracer != nil {
		c.ctx = s.service.withParent(c.ctx, propagation.HeaderCarrier(r.Header))
	}
	if err := s.service.answer(c); err != nil {
		return err
	}
	return proto.Unmarshal(c.answer, response)
}

// convert turns a message into r, which must be empty, as decode does with the bytes of the
// message.
func convert(message *ratelimitv3.RateLimitRequest, r *limiter.Request) {
	r.Domain, r.Hits = message.GetDomain(), message.GetHitsAddend()
	for _, from := range message.GetDescriptors() {
		to := r.Add()
		to.Refund = from.GetIsNegativeHits()
		for _, e := range from.GetEntries() {
			to.Entries = append(to.Entries, limiter.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		if hits := from.GetHitsAddend(); hits != nil {
			to.Hits, to.Probe = hits.GetValue(), hits.GetValue() == 0
		}
		if o := from.GetLimit(); o != nil {
			to.Override = &limiter.Override{Requests: o.GetRequestsPerUnit(), Unit: descriptors.Unit(o.GetUnit())}
			if m := o.GetUnitMultiplier(); m != nil {
				to.Override.Multiplier = cmp.Or(m.GetValue(), zeroMultiplier)
			}
		}
	}
}

// httpCode returns the HTTP status of a code that statusMapper makes.
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
