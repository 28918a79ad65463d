package server

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// Bounds of all requests of /json together. A request beyond them waits up to [inflight.BudgetWait] for others to end. A request with more bytes
// or objects than the bound waits until it is alone.
const (
	jsonRequests = 96              // the next one does not wait. Waiting requests must leave connections for probes
	jsonBytes    = 512 << 10       // of bodies
	jsonObjects  = 16 << 10        // of requests: descriptors, entries and limits. One takes up to 2 KiB, with its part of the answer
	jsonArrival  = 5 * time.Second // longest time for a body to arrive
)

// readBody reads the body of a request, at most bound bytes, within jsonArrival. A body above the bound is a *http.MaxBytesError.
func readBody(w http.ResponseWriter, r *http.Request, bound int64) ([]byte, error) {
	if r.ContentLength > bound {
		w.Header().Set("Connection", "close") // do not read it to find the next request
		return nil, &http.MaxBytesError{Limit: bound}
	}
	// Fails for a writer without deadlines, which is not a connection.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(jsonArrival))
	var body bytes.Buffer
	if r.ContentLength > 0 {
		body.Grow(int(r.ContentLength) + bytes.MinRead) // the last read needs room too
	}
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, bound)); err != nil {
		return nil, err
	}
	return body.Bytes(), nil
}

// countObjects returns how many objects begin in a JSON text. protojson makes a message of each, and only of these: in a text that
// is not JSON, of those up to the mistake at most.
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

// parse reads a body that has so many objects. The number of messages is bounded before the first is made.
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

// isTooLarge reports whether a body was above its bound.
func isTooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}
