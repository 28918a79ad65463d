package admin

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/weirproxy/weir/internal/wire/web"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Legacy returns the pages that envoyproxy/ratelimit has for its clients: /json, by any method, and
// /healthcheck, which answers as /readyz does; and /livez and /readyz.
func (s *Server) Legacy() http.Handler {
	pages := append(s.probes(), web.At("/healthcheck", "", func(w http.ResponseWriter, _ *http.Request) {
		code, answer := s.ready()
		web.Text(w, code, answer)
	}))
	if json := s.options.Service.JSON(); json != nil {
		pages = append(pages, web.At("/json", "", json))
	}
	return s.handler(pages...)
}

// Metrics returns the registry as one page at a path.
func (s *Server) Metrics(path string) http.Handler {
	return s.handler(web.At("GET "+path, "", s.metrics().ServeHTTP))
}

// Debug returns the pages that envoyproxy/ratelimit has for operators. / lists the pages, /rlconfig
// shows the limits in force, /stats the output of write, and /debug/pprof/ profiles. The pages do
// not ask for credentials. Without Options.Pprof, profiles are for programs on this machine.
func (s *Server) Debug(write func(io.Writer) error) http.Handler {
	profiles := web.Profiles()
	if !s.options.Pprof {
		for i := range profiles {
			profiles[i] = profiles[i].Local()
		}
	}
	return s.handler(web.Index(func() string { return "" }, append(profiles,
		web.At("GET /rlconfig", "limits in force, and why others are not", web.Few(s.limitLines)),
		web.At("GET /stats", "counters", web.Few(func(w http.ResponseWriter, _ *http.Request) {
			var b strings.Builder
			if err := write(&b); err != nil {
				web.Text(w, http.StatusInternalServerError, err.Error())
				return
			}
			web.Text(w, http.StatusOK, b.String())
		})),
	)...)...)
}

// limitLines shows each limit on a line in the words of envoyproxy/ratelimit, in the order of the
// documents. Lines that begin with # come first: the mistakes of the last load, if it was refused.
func (s *Server) limitLines(w http.ResponseWriter, _ *http.Request) {
	web.Plain(w, http.StatusOK)
	for _, reason := range s.options.loads().GetErrors() {
		fmt.Fprintf(w, "# refused: %s\n", reason)
	}
	for _, r := range s.options.Limiter.Rules().All() {
		levels := r.MetricLevels(nil)
		if len(levels) == 0 { // a domain's default
			levels = []string{r.Path}
		}
		key := r.Domain + "." + strings.Join(levels, ".")
		if r.Unlimited {
			fmt.Fprintf(w, "%s: unlimited\n", key)
		}
		for i := range r.Limits {
			l := &r.Limits[i]
			if l.Algorithm == algorithms.Concurrency {
				fmt.Fprintf(w, "%s: max_in_flight=%d, shadow_mode: %t, quota_mode: %t\n", key, l.Requests, r.Shadow, r.Quota)
				continue
			}
			period := l.PeriodName()
			if l.Unit != descriptors.UnitUnknown {
				period = strings.ToUpper(period)
			}
			fmt.Fprintf(w, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t\n",
				key, period, l.PerPeriod(), r.Shadow, r.Quota)
		}
	}
}
