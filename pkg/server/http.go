package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// writeTimeout bounds the time from a request for a page to the end of the answer: stalled readers
// must not block /metrics.
const writeTimeout = 15 * time.Second

// maxInFlight bounds the requests for a page with a long answer that are under way.
const maxInFlight = 4

// profiles is the path of the pages of pprof. The client chooses how long these take.
const profiles = "/debug/pprof/"

// page is a page of a listener.
type page struct {
	pattern string // as [http.ServeMux] has it
	about   string // for the index; "" leaves the page out
	handle  http.HandlerFunc
}

// newHTTP returns a handler of pages. A panic becomes an error 500, and a client that does not read
// within writeTimeout loses the connection. No page reads more of a body than
// Options.MaxRequestBytes.
func (s *Server) newHTTP(all ...page) http.Handler {
	mux := http.NewServeMux()
	for _, p := range all {
		mux.HandleFunc(p.pattern, p.handle)
	}
	return s.recoverHTTP(limitTimes(http.MaxBytesHandler(mux, int64(s.options.MaxRequestBytes))))
}

// few bounds the requests for a page with a long answer that are under way, the writing of the
// answers included.
func few(handle http.HandlerFunc) http.HandlerFunc { return atMost(maxInFlight, handle) }

// atMost bounds the requests for a page that are under way. A request beyond is answered with 503:
// a browser or a scraper asks again.
func atMost(n int, handle http.HandlerFunc) http.HandlerFunc {
	p := make(places, n)
	return func(w http.ResponseWriter, r *http.Request) {
		if !p.take() {
			busy(w)
			return
		}
		defer p.give()
		handle(w, r)
	}
}

// places bounds the requests under way by its capacity. Safe for concurrent use.
type places chan struct{}

// take takes a place without waiting, or reports false. The caller must give it back.
func (p places) take() bool {
	select {
	case p <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p places) give() { <-p }

// busy answers a request that is one too many. Not with 429: that is the answer of /json over
// limit.
func busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	text(w, http.StatusServiceUnavailable, "too many requests for this page are under way")
}

// index returns the pages with one more at /, which lists them.
func index(all ...page) []page {
	var lines []string
	for _, p := range all {
		if p.about != "" {
			lines = append(lines, fmt.Sprintf("%s: %s\n", p.pattern[strings.Index(p.pattern, "/"):], p.about))
		}
	}
	slices.Sort(lines)
	return append(all, page{"GET /{$}", "", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, strings.Join(lines, ""))
	}})
}

// pages returns the pages of HTTP.
func (s *Server) pages() http.Handler {
	pages := append(s.probes(),
		page{"GET /healthcheck", "OK, or 503 while the server drains", func(w http.ResponseWriter, _ *http.Request) {
			if s.draining.Load() {
				text(w, http.StatusServiceUnavailable, "draining")
				return
			}
			text(w, http.StatusOK, "OK")
		}},
		page{"GET /metrics", "metrics for Prometheus", s.metrics().ServeHTTP},
		page{"GET /rules", "rules in force, their origin, and the last load", few(s.rules)},
	)
	if s.options.JSON.From != JSONOff {
		pages = append(pages, page{"POST /json", "a RateLimitRequest as JSON", s.json(true)})
	}
	if s.options.Pprof {
		pages = append(pages, profilePages()...)
	}
	return s.newHTTP(index(pages...)...)
}

// probes returns the pages for Kubernetes.
func (s *Server) probes() []page {
	return []page{
		{"GET /livez", "OK while the process answers", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "OK\n") }},
		{"GET /readyz", "OK while requests should come, or 503 with the reason", func(w http.ResponseWriter, _ *http.Request) {
			code, answer := s.ready()
			text(w, code, answer+"\n")
		}},
	}
}

// ready returns 200 and OK once rules are in force and until the server drains, unless
// Options.Ready gives a reason against it.
func (s *Server) ready() (code int, answer string) {
	if s.draining.Load() {
		return http.StatusServiceUnavailable, "draining"
	}
	if s.options.Ready != nil {
		if err := s.options.Ready(); err != nil { // more precise than the absence of rules
			return http.StatusServiceUnavailable, err.Error()
		}
	}
	if s.options.Loads != nil && s.options.loads().LoadedAt.IsZero() {
		return http.StatusServiceUnavailable, "no rules loaded"
	}
	return http.StatusOK, "OK"
}

// metrics is the page of the registry.
func (s *Server) metrics() http.Handler {
	return promhttp.HandlerFor(s.options.Registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxInFlight,
	})
}

// profilePages returns the pages of pprof. The page of the command line leaves out the arguments,
// which may hold passwords.
func profilePages() []page {
	return []page{
		{"GET " + profiles, "profiles of this process", few(pprof.Index)},
		{"GET " + profiles + "cmdline", "", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, os.Args[0]) }},
		{"GET " + profiles + "profile", "", few(pprof.Profile)},
		{"GET " + profiles + "symbol", "", few(pprof.Symbol)},
		{"POST " + profiles + "symbol", "", few(pprof.Symbol)},
		{"GET " + profiles + "trace", "", few(pprof.Trace)},
	}
}

// limitTimes bounds the time to write a page. The client chooses how long a profile takes, within
// the bounds of the http.Server for writing; its bound for reading would end the profile.
func limitTimes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Deadlines fail for a writer that is not a connection.
		switch c := http.NewResponseController(w); {
		case !strings.HasPrefix(r.URL.Path, profiles):
			_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
		case r.ContentLength == 0:
			_ = c.SetReadDeadline(time.Time{})
		}
		next.ServeHTTP(w, r)
	})
}

// recoverHTTP keeps a panic in a page from net/http, which would log the panic on standard error.
func (s *Server) recoverHTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch v := recover(); v {
			case nil:
			case http.ErrAbortHandler:
				panic(v) //nolint:forbidigo // by this panic a handler tells net/http to cut the connection
			default:
				_ = s.service.statuses.status(&panicError{v, debug.Stack()})
				http.Error(w, textPanic, http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// text answers with a plain text.
func text(w http.ResponseWriter, code int, body string) {
	plain(w, code)
	_, _ = io.WriteString(w, body)
}

// plain begins an answer in plain text.
func plain(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
}
