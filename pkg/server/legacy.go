package server

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Legacy returns the pages that envoyproxy/ratelimit has for its clients: /json, by any method, and /healthcheck, which is that of
// HTTP's /readyz; and HTTP's /livez and /readyz.
func (s *Server) Legacy() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/json", s.json)
	mux.HandleFunc("/healthcheck", s.readyz)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "OK") })
	mux.HandleFunc("GET /readyz", s.readyz)
	return s.recoverHTTP(hurryHTTP(mux))
}

// Metrics returns the registry as one page at a path.
func (s *Server) Metrics(path string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+path, s.metrics())
	return s.recoverHTTP(hurryHTTP(mux))
}

// Debug returns the pages that envoyproxy/ratelimit has for its operators: / lists them, /rlconfig shows the limits in force, /stats
// what write writes, and /debug/pprof/ profiles. They ask nobody who they are.
func (s *Server) Debug(write func(io.Writer) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, "/debug/pprof/: profiles of this process\n/rlconfig: limits in force, and why others are not\n/stats: counters\n")
	})
	mux.HandleFunc("GET /rlconfig", s.limitLines)
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		var b strings.Builder
		if err := write(&b); err != nil {
			text(w, http.StatusInternalServerError, err.Error())
			return
		}
		text(w, http.StatusOK, b.String())
	})
	addProfiles(mux)
	return s.recoverHTTP(hurryHTTP(mux))
}

// limitLines shows each limit on a line, as envoyproxy/ratelimit words it, in the order of the documents; and before them what is
// wrong with the rules that were refused last, on lines that begin with #.
func (s *Server) limitLines(w http.ResponseWriter, _ *http.Request) {
	now := s.options.Limiter.Status()
	var b strings.Builder
	for _, reason := range now.Errors {
		fmt.Fprintf(&b, "# refused: %s\n", reason)
	}
	for _, r := range now.Rules.All() {
		levels := r.MetricLevels(nil)
		if len(levels) == 0 { // a domain's default
			levels = []string{r.Path}
		}
		key := r.Domain + "." + strings.Join(levels, ".")
		if r.Unlimited {
			fmt.Fprintf(&b, "%s: unlimited\n", key)
		}
		for i := range r.Limits {
			l := &r.Limits[i]
			fmt.Fprintf(&b, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t\n",
				key, unitOf(l), l.Requests, r.Shadow, r.Quota)
		}
	}
	text(w, http.StatusOK, b.String())
}

// unitOf names a limit's period: its unit, with a number before it where there are several, or the period where there is none.
func unitOf(l *descriptors.Limit) string {
	switch unit := strings.ToUpper(l.Unit.String()); {
	case l.Unit == descriptors.UnitUnknown:
		return l.Period.String()
	case l.Multiplier > 1:
		return fmt.Sprintf("%d%s", l.Multiplier, unit)
	default:
		return unit
	}
}
