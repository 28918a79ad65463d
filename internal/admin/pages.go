package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/wire/web"
)

func (s *Server) newPages() http.Handler {
	pages := append(s.probes(),
		web.At("GET /healthcheck", "OK, or 503 while the server drains", func(w http.ResponseWriter, _ *http.Request) {
			if s.draining.Load() {
				web.Text(w, http.StatusServiceUnavailable, "draining")
				return
			}
			web.Text(w, http.StatusOK, "OK")
		}),
		web.At("GET /metrics", "metrics for Prometheus", s.metrics().ServeHTTP),
		web.At("GET /rules", "rules in force, their origin, and the last load", web.Few(s.rules)),
	)
	if json := s.options.Service.JSON(); json != nil {
		pages = append(pages, web.At("POST /json", "a RateLimitRequest as JSON", json))
	}
	if s.options.Pprof {
		pages = append(pages, web.Profiles()...)
	}
	return s.handler(web.Index(s.whereAdmin, pages...)...)
}

// whereAdmin says where the admin page is, in a paragraph; "" before Serve.
func (s *Server) whereAdmin() string {
	at := s.at.Load()
	if at == nil {
		return ""
	}
	scheme, where := "http", ""
	if s.options.Access.TLS != nil {
		scheme = "https"
	}
	switch {
	case at.IP.IsUnspecified():
		where = fmt.Sprintf("port %d, by %s", at.Port, scheme)
	case at.IP.IsLoopback():
		where = fmt.Sprintf("%s://%s/ of this machine", scheme, at)
	default:
		where = fmt.Sprintf("%s://%s/", scheme, at)
	}
	return "The admin page is at " + where + ".\n\n"
}

// handler returns a handler of pages. The log of the service has their panics.
func (s *Server) handler(all ...web.Page) http.Handler { return web.Handler(s.panicked, all...) }

func (s *Server) panicked(value any) { _ = s.options.Service.Panicked(value) } // logged there

// probes returns the pages for Kubernetes.
func (s *Server) probes() []web.Page {
	return []web.Page{
		web.At("GET /livez", "OK while the process answers", func(w http.ResponseWriter, _ *http.Request) { web.Text(w, http.StatusOK, "OK\n") }),
		web.At("GET /readyz", "OK while requests should come, or 503 with the reason", func(w http.ResponseWriter, _ *http.Request) {
			code, answer := s.ready()
			web.Text(w, code, answer+"\n")
		}),
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
	if s.options.Loads != nil && s.options.loads().GetLoadedAt() == nil {
		return http.StatusServiceUnavailable, "no rules loaded"
	}
	return http.StatusOK, "OK"
}

// metrics is the page of the registry.
func (s *Server) metrics() http.Handler {
	return promhttp.HandlerFor(s.options.Registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: web.MaxInFlight,
	})
}

// rules is the page /rules. Rules are written one by one: as a whole they may take a large part of
// the memory of a small container.
func (s *Server) rules(w http.ResponseWriter, _ *http.Request) {
	head, err := indented(s.options.loads(), "")
	if err != nil {
		web.Text(w, http.StatusInternalServerError, web.TextPanic)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// The list of rules is the last field.
	head, _ = bytes.CutSuffix(head, []byte("]\n}"))
	_, err = w.Write(head)
	between, end := "\n    ", "]\n}\n"
	for _, r := range s.options.Limiter.Rules().All() {
		var rule []byte
		if err == nil {
			rule, err = indented(render.Rule(r), "    ")
		}
		if err != nil {
			return // the client is gone
		}
		_, _ = io.WriteString(w, between)
		_, err = w.Write(rule)
		between, end = ",\n    ", "\n  ]\n}\n"
	}
	_, _ = io.WriteString(w, end)
}

// indented returns a message as JSON with every field. Every line but the first begins with the
// prefix.
func indented(m proto.Message, prefix string) ([]byte, error) {
	line, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var lines bytes.Buffer // protojson varies the space between tokens
	err = json.Indent(&lines, line, prefix, "  ")
	return lines.Bytes(), err
}
