// Package page is the admin page: the state of a running Weir for people, with forms to ask and to
// change.
//
// The page decides nothing: it asks the methods of the admin service in this process, and reads
// counters. The page needs no internet: templates, one style sheet and one script, all embedded.
// Every answer has a Content-Security-Policy that allows nothing inline. Requests with a foreign
// Host or Origin are refused (DNS rebinding, cross-site requests), and with a token everybody must
// show it.
package page

import (
	"context"
	"embed"
	"errors"
	"html"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/wire/web"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

//go:embed assets templates
var files embed.FS

// Options is the options of New. Service and Logger must be set; every other field may be zero.
type Options struct {
	Service adminv1.AdminServiceServer // that the page asks
	Rules   func() iter.Seq[Rule]      // that count, with their counts; nil: none. Safe for concurrent use
	Logger  *slog.Logger

	Admitted func(*http.Request) // is called before each request with credentials, or one that needs none; nil: nobody wants to know

	Tokens *Tokens  // that clients must show; nil: no token
	Hosts  []string // names that a Host header may have, without port, in any case; localhost and IP addresses always may

	Version string // of the program; "" where unknown
	Host    string // name of the machine
}

// Page is the admin page. All methods are safe for concurrent use.
type Page struct {
	options     Options
	begun       time.Time
	handler     http.Handler
	crossOrigin *http.CrossOriginProtection
	refused     loglimit.Limiter
	calls       map[string]call
	sessions    *sessions
	sampler     *sampler

	pages, tails web.Places // of open streams
	ending       context.Context
	end          context.CancelFunc
	sampling     sync.Once
	sampled      sync.WaitGroup
}

// New returns a Page. The caller closes it.
func New(o Options) (*Page, error) {
	if o.Service == nil || o.Logger == nil {
		return nil, errors.New("service, logger: must not be nil")
	}
	p := &Page{
		options: o, begun: time.Now(), crossOrigin: http.NewCrossOriginProtection(), calls: calls(o.Service), sessions: newSessions(),
		sampler: newSampler(o.Service, o.Rules), pages: make(web.Places, maxStreams), tails: make(web.Places, maxStreams),
	}
	p.ending, p.end = context.WithCancel(context.Background())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /assets/{name}", p.asset)
	mux.HandleFunc("GET /favicon.ico", p.icon)
	mux.HandleFunc("GET /login", p.loginForm)
	mux.HandleFunc("POST /login", p.logIn)
	mux.HandleFunc("POST /logout", p.logOut)
	mux.Handle("/", p.authenticated(p.inside()))
	p.handler = p.guard(mux)
	return p, nil
}

// Begin begins the history, once.
func (p *Page) Begin() {
	p.sampling.Do(func() { p.sampled.Go(func() { p.sampler.run(p.ending) }) })
}

// Close ends the history and all streams.
func (p *Page) Close() {
	p.end()
	p.sampled.Wait()
}

// inside is the pages for people with credentials.
func (p *Page) inside() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.index)
	mux.HandleFunc("GET /events", p.events)
	mux.HandleFunc("GET /tail", p.tail)
	mux.HandleFunc("POST /api/{method}", p.api)
	return mux
}

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// index is the page itself. The script fills it.
func (p *Page) index(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	_, keys := p.options.Service.ListTopKeys(ctx, &adminv1.ListTopKeysRequest{Most: 1})
	_, quotas := p.options.Service.ListQuotas(ctx, &adminv1.ListQuotasRequest{Most: 1})
	_, grants := p.options.Service.ListGrants(ctx, &adminv1.ListGrantsRequest{Most: 1})
	title, class := "Weir", ""
	if p.options.Host != "" {
		title += " on " + p.options.Host
	}
	for _, part := range []struct {
		name string
		has  bool
	}{{"keys", built(keys)}, {"grants", built(grants)}, {"quotas", built(quotas)}, {"login", p.options.Tokens != nil}} {
		if !part.has {
			class += " no-" + part.name
		}
	}
	version := p.options.Version
	if version != "" {
		version += ","
	}
	show(w, http.StatusOK, "index.html", "$TITLE", title, "$CLASS", class, "$HOST", p.options.Host, "$VERSION", version,
		"$BEGUN", p.begun.UTC().Format(time.RFC3339), "$REACH", p.reach(r))
}

// reach returns the flags by which commands of sidecar reach the address that the browser of r has
// reached.
func (p *Page) reach(r *http.Request) string {
	server, port, tls := r.Host, "80", ""
	if r.TLS != nil {
		port, tls = "443", " --tls"
	}
	if _, _, err := net.SplitHostPort(server); err != nil {
		server = net.JoinHostPort(strings.Trim(server, "[]"), port)
	}
	flags := "--server " + server + tls
	if p.options.Tokens != nil {
		flags += " --token-file FILE"
	}
	return flags
}

// built reports whether a call that ended with err exists in this program, with its settings.
func built(err error) bool { return status.Code(err) != codes.Unimplemented }

// asset serves the style sheet, the script and the icon, which are no secret.
func (p *Page) asset(w http.ResponseWriter, r *http.Request) { serve(w, r, r.PathValue("name")) }

// icon serves the icon where a browser looks for it beside an answer that is not a page of ours: a
// refusal, or JSON.
func (p *Page) icon(w http.ResponseWriter, r *http.Request) { serve(w, r, "icon.svg") }

func serve(w http.ResponseWriter, r *http.Request, name string) {
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeFileFS(w, r, files, "assets/"+name)
}

// show answers with a page. Variables are pairs of a name and a value. A variable may stand in text
// and in quoted attributes.
func show(w http.ResponseWriter, code int, name string, variables ...string) {
	for i := 1; i < len(variables); i += 2 {
		variables[i] = html.EscapeString(variables[i])
	}
	page, _ := files.ReadFile("templates/" + name) // embedded
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = strings.NewReplacer(variables...).WriteString(w, string(page))
}
