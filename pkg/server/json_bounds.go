package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weirproxy/weir/internal/wire"
)

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

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}
