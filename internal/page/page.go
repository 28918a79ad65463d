// Package page is the admin page: the state of a running Weir for people, with forms to ask and to change.
//
// The page decides nothing and keeps no state of the service: it asks the methods of the admin service in this process. It works without
// the internet: one template, one style sheet, one script, all embedded. Every answer has a Content-Security-Policy that allows nothing
// inline. Requests with a foreign Host or Origin are refused (DNS rebinding, cross-site requests), and with a token everybody must show it.
package page

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"

	"github.com/weirproxy/weir/internal/loglimit"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

//go:embed assets templates
var files embed.FS

// Options is the options of New. Service and Logger must be set; every other field may be zero.
type Options struct {
	Service adminv1.AdminServiceServer // that the page shows
	Logger  *slog.Logger

	Token        func() string // the token that clients must show; "" admits nobody; nil: no token. Safe for concurrent use
	TokenSetting string        // the setting of the token, in errors
	Hosts        []string      // names that a Host header may have, without port, in any case; localhost and IP addresses always may
	HostsSetting string        // the setting of Hosts, in errors

	Version string // of the program
}

// Page is the admin page. All methods are safe for concurrent use.
type Page struct {
	options     Options
	templates   *template.Template
	handler     http.Handler
	crossOrigin *http.CrossOriginProtection
	refused     loglimit.Limiter
}

// New returns a Page.
func New(o Options) (*Page, error) {
	if o.Service == nil || o.Logger == nil {
		return nil, errors.New("service, logger: must not be nil")
	}
	p := &Page{options: o, crossOrigin: http.NewCrossOriginProtection()}
	var err error
	if p.templates, err = template.ParseFS(files, "templates/*.html"); err != nil {
		return nil, fmt.Errorf("templates: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /assets/{name}", p.asset)
	mux.HandleFunc("GET /login", p.loginForm)
	mux.HandleFunc("POST /login", p.logIn)
	mux.HandleFunc("POST /logout", p.logOut)
	mux.Handle("/", p.authenticated(p.inside()))
	p.handler = p.guard(mux)
	return p, nil
}

// inside is the pages for people with credentials.
func (p *Page) inside() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.index)
	return mux
}

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// asset serves the style sheet, the script and the icon, which are no secret.
func (p *Page) asset(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeFileFS(w, r, files, "assets/"+r.PathValue("name"))
}

// render answers with a template.
func (p *Page) render(w http.ResponseWriter, code int, name string, data any) {
	var b bytes.Buffer
	if err := p.templates.ExecuteTemplate(&b, name, data); err != nil {
		fail(w, http.StatusInternalServerError, "the template "+name+" cannot be shown: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes())
}
