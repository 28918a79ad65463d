package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weirproxy/weir/internal/wire/web"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// maxStreams bounds the open pages, and beside them the open tails.
const maxStreams = 16

// eventTimeout is the longest wait for a browser that does not read.
const eventTimeout = 10 * time.Second

// errLoggedOut ends a stream whose viewer has no credentials any more.
var errLoggedOut = errors.New("the session has ended")

// heartbeat is the time without an event after which a comment shows that the stream lives.
const heartbeat = 15 * time.Second

// stream is an answer of server-sent events (HTML Living Standard, section 9.2). One goroutine may
// use it.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	done    context.Context
	admits  func() bool // false when the session has ended, or the token has changed
}

// open begins a stream, or answers with the reason against it. The caller must call close.
func (p *Page) open(w http.ResponseWriter, r *http.Request, places web.Places) (s *stream, closing func()) {
	if r.Method == http.MethodHead { // no write could fail, so the place would be taken for as long as the client likes
		w.Header().Set("Allow", http.MethodGet)
		fail(w, http.StatusMethodNotAllowed, "a stream has no headers without a body: use GET")
		return nil, nil
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		fail(w, http.StatusForbidden, "requests of pages of other sites are refused")
		return nil, nil
	}
	if !places.Take() {
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages are open already, which is the most: close one", cap(places)))
		return nil, nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(p.ending, cancel)
	s = &stream{w: w, control: http.NewResponseController(w), done: ctx, admits: func() bool { return p.admits(r) }}
	_ = s.control.SetReadDeadline(time.Time{}) // else the server would take the client for gone. Fails without a connection
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx must pass events on at once
	return s, func() {
		stop()
		cancel()
		places.Give()
	}
}

// send sends an event. The data must have no line ends.
func (s *stream) send(name string, data []byte) error {
	if err := s.done.Err(); err != nil {
		return err
	}
	if !s.admits() {
		return errLoggedOut
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(eventTimeout)) // fails without a connection
	if _, err := fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", name, data); err != nil {
		return err
	}
	return s.control.Flush()
}

// events streams the history, and then the state each second.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	s, closing := p.open(w, r, p.pages)
	if s == nil {
		return
	}
	defer closing()
	defer p.sampler.look()()
	past, err := p.sampler.past()
	if err != nil || s.send("history", past) != nil {
		return
	}
	curves := time.Now()
	for {
		live, changed := p.sampler.now()
		if live != nil && s.send("state", live) != nil {
			return
		}
		if now := time.Now(); now.Sub(curves) >= curveStep {
			if past, err = p.sampler.past(); err != nil || s.send("history", past) != nil {
				return
			}
			curves = now
		}
		select {
		case <-s.done.Done():
			return
		case <-changed:
		}
	}
}

// tail streams the requests that the admin service's Watch shows.
func (p *Page) tail(w http.ResponseWriter, r *http.Request) {
	request, err := watchRequest(r)
	if err != nil {
		failCall(w, status.Error(codes.InvalidArgument, err.Error()))
		return
	}
	s, closing := p.open(w, r, p.tails)
	if s == nil {
		return
	}
	defer closing()
	ended := make(chan error, 1)
	t := &tailStream{ctx: s.done, begun: make(chan struct{}, 1), to: make(chan *adminv1.WatchResponse)}
	go func() { ended <- p.watch(request, t) }()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	begun := false
	for err == nil {
		select {
		case err = <-ended:
			if !begun && err != nil && s.done.Err() == nil {
				failCall(w, err)
			}
			return
		case m := <-t.to:
			var data []byte
			if data, err = protojson.Marshal(m); err == nil {
				err = s.send("requests", bytes.ReplaceAll(data, []byte("\n"), nil))
			}
		case <-t.begun:
			err = s.send("begun", []byte("{}"))
		case <-beat.C:
			err = s.send("beat", []byte("{}"))
		}
		begun = true
	}
}

// watch calls Watch. A panic there is the end of the tail: on this goroutine nobody else would stop
// the panic, and the process would end.
func (p *Page) watch(request *adminv1.WatchRequest, t *tailStream) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p.options.Logger.LogAttrs(t.ctx, slog.LevelError, "a panic ended a tail of the admin page",
				slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			err = status.Error(codes.Internal, "a panic ended the tail: see the log")
		}
	}()
	return p.options.Service.Watch(request, t)
}

func watchRequest(r *http.Request) (*adminv1.WatchRequest, error) {
	q := r.URL.Query()
	out := &adminv1.WatchRequest{Domain: q.Get("domain"), Rule: q.Get("rule"), MaxPerSecond: 50}
	for _, e := range q["entry"] {
		key, value, _ := strings.Cut(e, "=")
		if key != "" {
			out.Entries = append(out.Entries, &adminv1.Entry{Key: key, Value: value})
		}
	}
	for _, name := range q["outcome"] {
		n := adminv1.Outcome_value["OUTCOME_"+strings.ToUpper(name)]
		if n == 0 {
			return nil, fmt.Errorf("outcome: %q: must be one of "+
				"over_limit, ok, shadowed, unlimited, replaced, not_limited, unmatched, no_domain, failed", name)
		}
		out.Outcomes = append(out.Outcomes, adminv1.Outcome(n))
	}
	if text := q.Get("max"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 0 || n > 200 {
			return nil, fmt.Errorf("max: %q: must be a number of requests per second from 1 to 200", text)
		}
		out.MaxPerSecond = uint32(n)
	}
	return out, nil
}

// tailStream is the stream of a call of Watch.
type tailStream struct {
	grpc.ServerStreamingServer[adminv1.WatchResponse] // nil: Watch calls the methods below alone

	ctx   context.Context
	begun chan struct{}
	to    chan *adminv1.WatchResponse
}

// SetHeader implements [grpc.ServerStream].
func (t *tailStream) SetHeader(metadata.MD) error { return nil }

// SendHeader implements [grpc.ServerStream]. Watch calls it when the watch has begun.
func (t *tailStream) SendHeader(metadata.MD) error {
	select {
	case t.begun <- struct{}{}:
	default:
	}
	return nil
}

// Context implements [grpc.ServerStream].
func (t *tailStream) Context() context.Context { return t.ctx }

// Send implements [grpc.ServerStreamingServer].
func (t *tailStream) Send(m *adminv1.WatchResponse) error {
	select {
	case t.to <- m:
		return nil
	case <-t.ctx.Done():
		return t.ctx.Err()
	}
}
