package parts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Backend is a web server behind Envoy. The query of a request chooses the answer:
//
//	wait=1s      the answer begins after that time
//	gate=NAME    the answer begins when the gate is open, see Open
//	status=503   the code of the answer
//	size=1000    the number of bytes of the body; with tokens, about so many bytes more
//	tokens=70    the body is JSON with usage.total_tokens
//	stream=3     the body is so many server-sent events
//	midway=NAME  the rest of the body after the first event, or the first byte, comes when the gate
//	             is open
//	to=/path     the answer redirects there
//	reset=begin  the connection breaks before the answer; reset=midway: after the first event, or the
//	             first byte
//
// A POST to the paths of OpenAI's chat completions and responses, Anthropic's messages and Gemini's
// generateContent is answered as a language model would, see modelAnswer. There the query may have
// the numbers of Usage too. Other requests get a line of text. A Backend is safe for concurrent
// use.
type Backend struct {
	address string // host:port
	server  *http.Server
	ended   chan error

	mu    sync.Mutex // guards gates
	gates map[string]*gate
}

// A gate holds requests until it is open.
type gate struct {
	open    chan struct{} // closed when the gate is open
	arrived int           // requests that ever came to the gate
	waiting int           // requests that wait now
}

// StartBackend serves a Backend at host:port; port 0 means a free port.
func StartBackend(address string) (*Backend, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("starting the backend: %w", err)
	}
	b := &Backend{address: listener.Addr().String(), ended: make(chan error, 1), gates: map[string]*gate{}}
	b.server = &http.Server{Handler: b, ReadHeaderTimeout: 10 * time.Second}
	go func() { b.ended <- b.server.Serve(listener) }()
	return b, nil
}

// Address is the host:port of the backend.
func (b *Backend) Address() string { return b.address }

// Ended receives the error that ended the backend, once, also after Close.
func (b *Backend) Ended() <-chan error { return b.ended }

// Close ends the backend at once, with all requests.
func (b *Backend) Close() error { return b.server.Close() }

// Open lets all requests at that gate pass, now and later.
func (b *Backend) Open(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.gateLocked(name)
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// At returns the number of requests that have ever come to the gate, and of these that wait at the
// gate now.
func (b *Backend) At(name string) (arrived, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.gateLocked(name)
	return g.arrived, g.waiting
}

// gateLocked returns the gate of that name, and makes a closed one first if there is no such gate.
func (b *Backend) gateLocked(name string) *gate {
	if b.gates[name] == nil {
		b.gates[name] = &gate{open: make(chan struct{})}
	}
	return b.gates[name]
}

// pass waits until the gate is open, or until the client has left.
func (b *Backend) pass(ctx context.Context, name string) {
	if name == "" {
		return
	}
	b.mu.Lock()
	g := b.gateLocked(name)
	g.arrived++
	g.waiting++
	b.mu.Unlock()
	select {
	case <-g.open:
	case <-ctx.Done():
	}
	b.mu.Lock()
	g.waiting--
	b.mu.Unlock()
}

// ServeHTTP answers as the query says.
func (b *Backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	kind, pieces := "", []string(nil)
	if answer := apiOf(r.URL.Path); answer != nil && r.Method == http.MethodPost {
		var err error
		if kind, pieces, err = modelAnswer(answer, r.Body, query); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	} else if _, err := io.Copy(io.Discard, r.Body); err != nil { // the net/http server sees that a client leaves only after the body
		return
	}
	var wait time.Duration
	status, size := http.StatusOK, 0
	err := numbers(query, map[string]*int{"status": &status, "size": &size})
	if text := query.Get("wait"); err == nil && text != "" {
		wait, err = time.ParseDuration(text)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.pass(r.Context(), query.Get("gate"))
	select {
	case <-time.After(wait):
	case <-r.Context().Done():
	}
	if query.Get("reset") == "begin" {
		breakConnection(w)
		return
	}
	if pieces == nil {
		kind, pieces = body(r.URL.Path, query, size)
	}
	if kind != "" {
		w.Header().Set("Content-Type", kind)
	}
	if to := query.Get("to"); to != "" {
		http.Redirect(w, r, to, http.StatusFound)
		return
	}
	w.WriteHeader(status)
	for i, piece := range pieces {
		if i == 1 {
			b.pass(r.Context(), query.Get("midway"))
		}
		if i == 1 && query.Get("reset") == "midway" {
			breakConnection(w)
			return
		}
		if _, err := io.WriteString(w, piece); err != nil {
			return // the client has left
		}
		if len(pieces) == 1 {
			return // the server then knows the length
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
	}
}

// breakConnection closes the connection of an answer that is not complete.
func breakConnection(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil { // else the connection is closed already
		_ = conn.Close()
	}
}

// numbers reads the numbers of a query that are there.
func numbers(query url.Values, all map[string]*int) error {
	var problems []error
	for name, number := range all {
		if text := query.Get(name); text != "" {
			var err error
			*number, err = strconv.Atoi(text)
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// body returns the content type and the pieces of an answer. Without a content type the server
// finds one.
func body(path string, query url.Values, size int) (kind string, pieces []string) {
	usage := ""
	if tokens := query.Get("tokens"); tokens != "" {
		usage = `"usage":{"total_tokens":` + tokens + `}`
	}
	events, err := strconv.Atoi(query.Get("stream"))
	switch {
	case err == nil:
		for i := range events {
			pieces = append(pieces, fmt.Sprintf("data: word %d\n\n", i))
		}
		return "text/event-stream", append(pieces, "data: [DONE]\n\n")
	case usage != "":
		words := "some words" + strings.Repeat(" more", size/len(" more"))
		return "application/json", []string{"{", `"choices":[{"message":{"content":"` + words + `"}}],` + usage + "}\n"}
	case size > 0:
		return "application/octet-stream", []string{"0", strings.Repeat("0", size-1)}
	}
	text := "hello from the backend: " + path + "\n"
	if query.Has("midway") || query.Has("reset") {
		return "", []string{text[:1], text[1:]}
	}
	return "", []string{text}
}
