// Package web is the part that all pages of Weir share. The package bounds the time and the number
// of requests, answers panics, and checks the name by which a client reaches a page.
package web

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// WriteTimeout bounds the time from a request for a page to the end of the answer: stalled readers
// must not block /metrics.
const WriteTimeout = 15 * time.Second

// MaxInFlight bounds the requests for a page with a long answer that are under way.
const MaxInFlight = 4

// maxSymbols bounds the body of a request for symbols, in bytes.
const maxSymbols = 64 << 10

// TextPanic is the answer to a request whose page has panicked.
const TextPanic = "internal error"

// profiles is the path of the pages of pprof. The client chooses how long these take.
const profiles = "/debug/pprof/"

// Page is a page of a listener.
type Page struct {
	Pattern string // as [http.ServeMux] has it
	About   string // for the index; "" leaves the page out
	Handle  http.HandlerFunc
}

// At returns a page.
func At(pattern, about string, handle http.HandlerFunc) Page { return Page{pattern, about, handle} }

// Handler returns a handler of pages. A client that does not read within WriteTimeout loses the
// connection. A panic becomes an error 500, and panicked gets its value.
func Handler(panicked func(value any), all ...Page) http.Handler {
	mux := http.NewServeMux()
	for _, p := range all {
		mux.HandleFunc(p.Pattern, p.Handle)
	}
	return Guarded(panicked, mux)
}

// Guarded returns a handler with the bounds of time and the care for panics of Handler.
func Guarded(panicked func(value any), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch v := recover(); v {
			case nil:
			case http.ErrAbortHandler:
				panic(v) //nolint:forbidigo // by this panic a handler makes net/http cut the connection
			default: // net/http would log the panic on standard error
				panicked(v)
				http.Error(w, TextPanic, http.StatusInternalServerError)
			}
		}()
		limitTimes(w, r)
		next.ServeHTTP(w, r)
	})
}

// limitTimes bounds the time to write a page. The client chooses how long a profile takes, within
// the bounds of the http.Server for writing; its bound for reading would end the profile.
func limitTimes(w http.ResponseWriter, r *http.Request) {
	// Deadlines fail for a writer that is not a connection.
	switch c := http.NewResponseController(w); {
	case !strings.HasPrefix(r.URL.Path, profiles):
		_ = c.SetWriteDeadline(time.Now().Add(WriteTimeout))
	case r.ContentLength == 0:
		_ = c.SetReadDeadline(time.Time{})
	}
}

// Few bounds the requests for a page with a long answer that are under way, the writing of the
// answers included.
func Few(handle http.HandlerFunc) http.HandlerFunc { return AtMost(MaxInFlight, handle) }

// AtMost bounds the requests for a page that are under way. A request beyond is answered with 503:
// a browser or a scraper asks again.
func AtMost(n int, handle http.HandlerFunc) http.HandlerFunc {
	p := make(Places, n)
	return func(w http.ResponseWriter, r *http.Request) {
		if !p.Take() {
			Busy(w)
			return
		}
		defer p.Give()
		handle(w, r)
	}
}

// Places bounds the requests under way by its capacity. Safe for concurrent use.
type Places chan struct{}

// Take takes a place without waiting, or reports false. The caller must give it back.
func (p Places) Take() bool {
	select {
	case p <- struct{}{}:
		return true
	default:
		return false
	}
}

// Give gives a place back.
func (p Places) Give() { <-p }

// Busy answers a request that is one too many. Not with 429: that is the answer of /json over
// limit.
func Busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	Text(w, http.StatusServiceUnavailable, "too many requests for this page are under way")
}

// Index returns the pages with one more at /, which lists them below a text of the moment.
func Index(head func() string, all ...Page) []Page {
	var lines []string
	for _, p := range all {
		if p.About != "" {
			lines = append(lines, fmt.Sprintf("%s: %s\n", p.Pattern[strings.Index(p.Pattern, "/"):], p.About))
		}
	}
	slices.Sort(lines)
	return append(all, Page{"GET /{$}", "", func(w http.ResponseWriter, _ *http.Request) {
		Text(w, http.StatusOK, head()+strings.Join(lines, ""))
	}})
}

// Profiles returns the pages of pprof. The page of the command line leaves out the arguments,
// which may hold passwords.
func Profiles() []Page {
	return []Page{
		{"GET " + profiles, "profiles of this process", Few(pprof.Index)},
		{"GET " + profiles + "cmdline", "", func(w http.ResponseWriter, _ *http.Request) { Text(w, http.StatusOK, os.Args[0]) }},
		{"GET " + profiles + "profile", "", Few(pprof.Profile)},
		{"GET " + profiles + "symbol", "", Few(pprof.Symbol)},
		{"POST " + profiles + "symbol", "", Few(http.MaxBytesHandler(http.HandlerFunc(pprof.Symbol), maxSymbols).ServeHTTP)},
		{"GET " + profiles + "trace", "", Few(pprof.Trace)},
	}
}

// Text answers with a plain text.
func Text(w http.ResponseWriter, code int, body string) {
	Plain(w, code)
	_, _ = io.WriteString(w, body)
}

// Plain begins an answer in plain text.
func Plain(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
}

// HTTPCode returns the status code for a gRPC code, as google/rpc/code.proto maps them.
func HTTPCode(c codes.Code) int {
	switch c {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded, codes.Canceled:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}

// Named reports whether a Host header is localhost, an IP address, or one of the names. A web page
// whose name turns into an address of this machine later (DNS rebinding) has another one.
func Named(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(host, ".")
	if ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err == nil {
		return ip.Zone() == "" // a zone may be any text, such as the name of another site
	}
	same := func(name string) bool { return strings.EqualFold(strings.TrimSuffix(name, "."), host) }
	return same("localhost") || slices.ContainsFunc(names, same)
}

// Forwarded returns a header by which a proxy says that a request is not its own; "" without one.
// Envoy adds X-Forwarded-Proto and X-Request-Id to each request.
func Forwarded(h http.Header) string {
	for name := range h {
		if strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "X-Envoy-") {
			return name
		}
	}
	for _, name := range []string{"Forwarded", "Via", "X-Real-Ip", "X-Request-Id"} {
		if len(h[name]) > 0 {
			return name
		}
	}
	return ""
}

// FromLoopback returns why a request may have come from another machine, "" for a request of this
// one. Both addresses of its connection must be of loopback: a proxy beside the program, as in a
// mesh, has one of its own. And no header may say that a proxy has forwarded the request.
func FromLoopback(r *http.Request) (reason string) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return "it comes from " + r.RemoteAddr
	}
	if to, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && !to.IP.IsLoopback() {
		return "it came to " + to.String()
	}
	if name := Forwarded(r.Header); name != "" {
		return "a proxy forwarded it: it has the header " + name
	}
	return ""
}

// Local returns a page for requests of this machine, by a name or an address of this machine. Other
// requests get 403.
func (p Page) Local() Page {
	handle := p.Handle
	p.Handle = func(w http.ResponseWriter, r *http.Request) {
		reason := FromLoopback(r)
		if reason == "" && !Named(r.Host, nil) {
			reason = fmt.Sprintf("the request is for the host %q", r.Host)
		}
		if reason != "" {
			Text(w, http.StatusForbidden, "this page is for requests to a loopback address of this machine, as by kubectl port-forward: "+reason)
			return
		}
		handle(w, r)
	}
	return p
}
