package page

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// maxFormBytes bounds the body of a login.
const maxFormBytes = 8 << 10

// authenticated returns a handler for requests with the token or a session. A person without them is sent to the login form.
func (p *Page) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.admitted(r) {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		if r.Header.Get("Authorization") != "" {
			p.logRefused(r, "a request with a wrong token was refused")
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		fail(w, http.StatusUnauthorized, "the token is missing or wrong: send it as Authorization: Bearer TOKEN, or log in at /login")
	})
}

// login is the data of the login form.
type login struct {
	Wrong  bool // the token of before
	NoFile bool // nobody can log in
}

func (p *Page) loginForm(w http.ResponseWriter, r *http.Request) {
	if p.admitted(r) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	p.render(w, http.StatusOK, "login.html", login{NoFile: p.options.Token() == ""})
}

// logIn takes the token of the form.
func (p *Page) logIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
	if p.options.Token == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	token := p.options.Token()
	if token == "" || !Equal(strings.TrimSpace(r.PostFormValue("token")), token) {
		p.logRefused(r, "a login with a wrong token was refused")
		p.render(w, http.StatusForbidden, "login.html", login{Wrong: true, NoFile: token == ""})
		return
	}
	http.SetCookie(w, cookie(r, token, newSession(token, time.Now().Add(sessionAge)), sessionAge))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// logOut makes the browser forget its session. Nobody else learns the name of the cookie, which depends on the token: with that name a
// stranger could try tokens without asking the server.
func (p *Page) logOut(w http.ResponseWriter, r *http.Request) {
	if p.options.Token != nil && p.admitted(r) {
		http.SetCookie(w, cookie(r, p.options.Token(), "", 0))
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// logRefused writes at most one line per second.
func (p *Page) logRefused(r *http.Request, text string) {
	if missed, due := p.refused.Due(time.Second); due {
		//nolint:sloglint // the callers give constants
		p.options.Logger.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelWarn, text,
			slog.String("client", r.RemoteAddr), slog.String("path", r.URL.Path), slog.Uint64("not_logged", missed))
	}
}
