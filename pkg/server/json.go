package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/internal/wire/web"
)

// JSON returns the page /json, or nil where Options.JSON has none. The page answers a
// RateLimitRequest in protobuf's JSON with a RateLimitResponse. The status is 200, 429 over limit,
// 400 for an invalid request, 413 for a large one, and 503 when too many are under way. A request
// that Options.JSON does not allow gets 403, 415 or 421. The request takes the way of
// ShouldRateLimit. Without Options.Original the answer shows a limitRemaining of 0, which
// protobuf's JSON leaves out. Hits that never pass then have never: true in place of a wait. The
// caller answers panics.
func (s *Server) JSON() http.HandlerFunc {
	o := s.options.JSON
	if o.From == JSONOff {
		return nil
	}
	bound := int64(s.options.MaxRequestBytes)
	large := wire.NewBudget(max(jsonLarge, bound))
	answer := s.answerBody(max(jsonBytes, bound))
	return web.AtMost(jsonArriving, func(w http.ResponseWriter, r *http.Request) {
		if no := o.refuse(r); no != nil {
			web.Text(w, no.code, no.text)
			return
		}
		body, err := readBody(w, r, bound, large)
		_, tooLarge := errors.AsType[*http.MaxBytesError](err)
		switch {
		case errors.Is(err, errBusy):
			web.Busy(w)
		case tooLarge:
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
func (s *Server) answerBody(most int64) func(w http.ResponseWriter, r *http.Request, body []byte) {
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
		s.answerJSON(w, r, request)
	}
}

func (s *Server) answerJSON(w http.ResponseWriter, r *http.Request, request *ratelimitv3.RateLimitRequest) {
	response := new(ratelimitv3.RateLimitResponse)
	never, err := s.exchange(r, request, response)
	if err != nil {
		failed := status.Convert(err)
		if failed.Code() == codes.ResourceExhausted {
			web.Busy(w)
			return
		}
		web.Text(w, web.HTTPCode(failed.Code()), failed.Message())
		return
	}
	answer, err := protojson.Marshal(response)
	if err == nil && !s.options.Original {
		answer, err = complete(answer, never)
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

// complete adds a limitRemaining of 0 to every status of a RateLimitResponse that has a limit and
// none left. The statuses of the indexes in never get never: true in place of a wait.
func complete(answer []byte, never []int) ([]byte, error) {
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
	for _, i := range never {
		statuses[i]["never"] = json.RawMessage("true")
		delete(statuses[i], "durationUntilReset")
	}
	var err error
	if response["statuses"], err = json.Marshal(statuses); err != nil {
		return nil, err
	}
	return json.Marshal(response)
}

// exchange answers a request. never are the indexes of the descriptors with hits that never pass.
func (s *Server) exchange(
	r *http.Request, request *ratelimitv3.RateLimitRequest, response *ratelimitv3.RateLimitResponse,
) (never []int, err error) {
	data, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	c := &call{begun: time.Now(), ctx: r.Context(), client: browsing{r}, exact: slices.Contains(r.Header.Values(lane.ExactHeader), "1")}
	defer s.service.survive(c, &err)
	c.decodeInPlace(data)
	if s.options.Tracer != nil {
		c.ctx = s.service.withParent(c.ctx, propagation.HeaderCarrier(r.Header))
	}
	if err = s.service.takeRoom(c); err == nil {
		err = s.service.answer(c)
	}
	if err != nil {
		return nil, err
	}
	for i := range c.verdict.Statuses {
		if d := &c.verdict.Statuses[i]; d.OverLimit && d.Never {
			never = append(never, i)
		}
	}
	return never, proto.Unmarshal(c.answer, response)
}

// JSON chooses the clients of /json and their powers. The zero value takes requests that charge
// hits, from programs on this machine.
type JSON struct {
	From      JSONFrom // the addresses that requests may come from
	Hosts     []string // names that a Host header may have, without port, in any case; localhost and IP addresses always may
	Refunds   bool     // a descriptor may have is_negative_hits
	Overrides bool     // a descriptor may have a limit
	AnyClient bool     // as in envoyproxy/ratelimit: Content-Type, Origin and Host do not matter
}

// JSONFrom is a set of addresses that requests of /json may come from.
type JSONFrom int

// The sets of addresses. JSONFromLoopback also refuses requests that a proxy forwarded.
const (
	JSONFromLoopback JSONFrom = iota
	JSONFromAnywhere
	JSONOff // there is no page
)

// check returns a mistake, nil without one.
func (j *JSON) check() error {
	if j.From < JSONFromLoopback || j.From > JSONOff {
		return fmt.Errorf("json: from %d: must be JSONFromLoopback, JSONFromAnywhere or JSONOff", j.From)
	}
	return nil
}

type refusal struct {
	code int
	text string
}

// refuse returns the reason why the client may not use /json, nil without one. refuse reads the
// headers alone.
func (j *JSON) refuse(r *http.Request) *refusal {
	if j.From == JSONFromLoopback {
		if reason := web.FromLoopback(r); reason != "" {
			return &refusal{http.StatusForbidden, "/json takes requests of this machine only, from loopback to loopback: " + reason}
		}
	}
	if j.AnyClient {
		return nil
	}
	if !web.Named(r.Host, j.Hosts) {
		return &refusal{
			http.StatusMisdirectedRequest,
			fmt.Sprintf("Host: %q: /json is at localhost, at IP addresses, and at names that the operator has listed", r.Host),
		}
	}
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		return &refusal{http.StatusForbidden, "/json takes no requests of pages of other sites: " + err.Error()}
	}
	// A web page cannot send this type to another site without asking that site first.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &refusal{
			http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type: %q: must be application/json", r.Header.Get("Content-Type")),
		}
	}
	return nil
}

// refuseContent returns the first reason why /json does not take a request, nil without one.
func (j *JSON) refuseContent(request *ratelimitv3.RateLimitRequest) error {
	for i, d := range request.GetDescriptors() {
		if d.GetIsNegativeHits() && !j.Refunds {
			return fmt.Errorf("descriptors[%d].is_negative_hits: /json does not take refunds here", i)
		}
		if d.GetLimit() != nil && !j.Overrides {
			return fmt.Errorf("descriptors[%d].limit: /json does not take overrides here", i)
		}
	}
	return nil
}

// Bounds of all requests of /json together. A request beyond jsonBytes or jsonObjects waits up to
// [wire.BudgetWait] for others to end. A request with more bytes or objects than the bound
// waits until it is alone. A request counts when its body has arrived: slow clients must not keep
// others out.
const (
	jsonRequests = 96        // the next one does not wait. Waiting requests must leave connections for probes
	jsonBytes    = 512 << 10 // of bodies
	jsonObjects  = 12 << 10  // of requests: descriptors, entries and limits. One takes up to 2 KiB, with its part of the answer
)

// Bounds of bodies on their way. Up to jsonFree bytes of each count in no budget: with 128
// connections they take 8 MiB.
const (
	jsonArriving = 256             // requests in all. The next one does not wait
	jsonFree     = 64 << 10        // bytes of each
	jsonLarge    = 2 << 20         // bytes beyond, of all
	jsonArrival  = 5 * time.Second // longest time for a body to arrive
)

var errBusy = errors.New("too many large bodies are on their way")

// readBody reads the body of a request, at most bound bytes, within jsonArrival. A body above the
// bound is a *http.MaxBytesError. A body above jsonFree takes the rest from large, until readBody
// returns.
func readBody(w http.ResponseWriter, r *http.Request, bound int64, large *wire.Budget) ([]byte, error) {
	if r.ContentLength > bound {
		w.Header().Set("Connection", "close") // do not read it to find the next request
		return nil, &http.MaxBytesError{Limit: bound}
	}
	arrive := func() {
		// Fails for a writer without deadlines, which is not a connection.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(jsonArrival))
	}
	arrive()
	var body bytes.Buffer
	most, size := min(bound+1, jsonFree), bound
	if r.ContentLength >= 0 {
		size = r.ContentLength
		body.Grow(int(min(size, most)) + bytes.MinRead) // the last read needs room too
	}
	from := http.MaxBytesReader(w, r.Body, bound)
	if _, err := body.ReadFrom(io.LimitReader(from, most)); err != nil || int64(body.Len()) < most {
		return body.Bytes(), err
	}
	taken, ok := large.Take(r.Context(), size-int64(body.Len()))
	if !ok {
		return nil, errBusy
	}
	defer large.Give(taken)
	arrive() // the wait does not count
	body.Grow(int(size) - body.Len() + bytes.MinRead)
	_, err := body.ReadFrom(from)
	return body.Bytes(), err
}

// countObjects returns how many objects begin in a JSON text. protojson makes a message of each,
// and only of these: in a text that is not JSON, of those up to the mistake at most.
func countObjects(body []byte) (objects int) {
	inText := false
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			inText = !inText
		case '\\': // in a text; elsewhere a mistake
			i++
		case '{':
			if !inText {
				objects++
			}
		}
	}
	return objects
}

// errObjects is about a body that would take much more memory than its size.
var errObjects = fmt.Errorf("more than %d descriptors, entries and limits in one request", MaxItems)

// parse reads a body that has so many objects. The number of messages is bounded before the first
// is made.
func parse(body []byte, objects int) (*ratelimitv3.RateLimitRequest, error) {
	if objects-1 > MaxItems { // one is the request
		return nil, errObjects
	}
	request := new(ratelimitv3.RateLimitRequest)
	if err := protojson.Unmarshal(body, request); err != nil {
		return nil, err
	}
	return request, nil
}
