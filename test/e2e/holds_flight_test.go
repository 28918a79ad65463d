package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// A flight is a request through Envoy that may still be at the backend.
type flight struct {
	leave context.CancelFunc // the client closes the connection
	ended chan struct{}      // closed when answer and err are there
	answer
	err error
}

// fly sends a GET through Envoy on a connection of its own, and does not wait for the answer.
// Headers are "name: value".
func (e *envoy) fly(t *testing.T, path string, headers ...string) *flight {
	t.Helper()
	return e.flyWith(t, path, nil, headers...)
}

// flyWith is fly with a POST of JSON.
func (e *envoy) flyWith(t *testing.T, path string, body io.Reader, headers ...string) *flight {
	t.Helper()
	ctx, cancel := context.WithCancel(parts.Soon(t))
	f := &flight{leave: cancel, ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		f.answer, f.err = e.send(ctx, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, path, body, headers...)
	}()
	t.Cleanup(func() { f.leave(); <-f.ended })
	return f
}

// land waits for the answer.
func (f *flight) land(t *testing.T) answer {
	t.Helper()
	<-f.ended
	if f.err != nil {
		t.Fatal(f.err)
	}
	return f.answer
}

// gated returns the path of a request that waits at a gate of the backend.
func gated(gate string) string { return "/?gate=" + gate }

// A crowd is requests that come one after the other to a gate of a backend.
type crowd struct {
	e       *envoy
	backend *parts.Backend
	gate    string
	path    string
	headers []string
}

// send sends the next request of the crowd, and waits until the request is at the gate or answered.
// send returns the request, and "held" or the status code.
func (c crowd) send(t *testing.T) (*flight, string) {
	t.Helper()
	before, _ := c.backend.At(c.gate)
	f := c.e.fly(t, c.path, c.headers...)
	outcome := ""
	parts.Eventually(t, func() string {
		if arrived, _ := c.backend.At(c.gate); arrived > before {
			outcome = "held"
			return ""
		}
		select {
		case <-f.ended:
		default:
			return "the request is neither at the backend nor answered"
		}
		if outcome = fmt.Sprint(f.code); f.err != nil {
			outcome = f.err.Error()
		}
		return ""
	})
	return f, outcome
}

// sendAll sends so many requests and returns them with their outcomes.
func (c crowd) sendAll(t *testing.T, n int) (flights []*flight, outcomes []string) {
	t.Helper()
	for range n {
		f, outcome := c.send(t)
		flights, outcomes = append(flights, f), append(outcomes, outcome)
	}
	return flights, outcomes
}

// awaitGate waits until so many requests have come to a gate of the backend.
func awaitGate(t *testing.T, backend *parts.Backend, gate string, n int) {
	t.Helper()
	parts.Eventually(t, func() string {
		if arrived, _ := backend.At(gate); arrived < n {
			return fmt.Sprintf("%d requests have come to gate %s, want %d", arrived, gate, n)
		}
		return ""
	})
}

// settled waits until each of the requests is at the gate or answered, and returns the number of
// answers.
func settled(t *testing.T, backend *parts.Backend, gate string, flights []*flight) (answered int) {
	t.Helper()
	parts.Eventually(t, func() string {
		answered = 0
		for _, f := range flights {
			select {
			case <-f.ended:
				answered++
			default:
			}
		}
		if arrived, _ := backend.At(gate); arrived+answered < len(flights) {
			return fmt.Sprintf("%d requests at the backend, %d answered, want %d together", arrived, answered, len(flights))
		}
		return ""
	})
	return answered
}

// times returns n times the text.
func times(n int, text string) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = text
	}
	return all
}
