package server

import (
	"io"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// writeTimeout is the most time from a request for a page to the end of its answer. It bounds how long readers that stall keep
// others from /metrics.
const writeTimeout = 15 * time.Second

// profiles is where the pages are that take as long as they are asked to.
const profiles = "/debug/pprof/"

func (s *Server) newHTTP() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthcheck", s.unlessDraining("OK"))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "OK") })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", s.metrics())
	mux.HandleFunc("POST /json", s.json)
	mux.HandleFunc("GET /rules", s.rules)
	if s.options.Pprof {
		addProfiles(mux)
	}
	return s.recoverHTTP(hurryHTTP(mux))
}

// metrics is the page of the registry.
func (s *Server) metrics() http.Handler {
	return promhttp.HandlerFor(s.options.Registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 4,
	})
}

// addProfiles adds the pages of pprof.
func addProfiles(mux *http.ServeMux) {
	mux.HandleFunc("GET "+profiles, pprof.Index)
	mux.HandleFunc("GET "+profiles+"cmdline", program)
	mux.HandleFunc("GET "+profiles+"profile", pprof.Profile)
	mux.HandleFunc("GET "+profiles+"symbol", pprof.Symbol)
	mux.HandleFunc("POST "+profiles+"symbol", pprof.Symbol)
	mux.HandleFunc("GET "+profiles+"trace", pprof.Trace)
}

// program stands for pprof's page of the command line. It leaves the arguments out, which may hold passwords.
func program(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, os.Args[0]) }

// hurryHTTP breaks the connection of who does not take a page within writeTimeout; profiles have the time of the http.Server.
func hurryHTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, profiles) {
			// A writer without deadlines is none of a connection.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		}
		next.ServeHTTP(w, r)
	})
}

// recoverHTTP keeps a panic in a page from going to net/http, which would log it on standard error.
func (s *Server) recoverHTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch v := recover(); v {
			case nil:
			case http.ErrAbortHandler:
				panic(v) //nolint:forbidigo // it is how handlers tell net/http to cut the connection
			default:
				_ = s.service.faults.status(&panicError{v, debug.Stack()})
				http.Error(w, textPanic, http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// unlessDraining answers with a text, and 503 while draining.
func (s *Server) unlessDraining(ok string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if s.draining.Load() {
			text(w, http.StatusServiceUnavailable, "draining")
			return
		}
		text(w, http.StatusOK, ok)
	}
}

// readyz answers 200 once rules are in force and until the server drains, while nothing else speaks against it.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	if s.options.Ready != nil && !s.draining.Load() {
		if err := s.options.Ready(); err != nil { // which says more than that there are no rules
			text(w, http.StatusServiceUnavailable, err.Error())
			return
		}
	}
	if s.options.Limiter.Status().LoadedAt.IsZero() {
		text(w, http.StatusServiceUnavailable, "no rules loaded")
		return
	}
	s.unlessDraining("OK")(w, r)
}

// text answers with a plain text.
func text(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body)
}
