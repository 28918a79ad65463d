package page

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxFormBytes bounds the body of a login.
const maxFormBytes = 8 << 10

// authenticated returns a handler for requests with the token or a session. A person without them
// is sent to the login form.
func (p *Page) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.options.Tokens == nil {
			p.pass(w, r, next)
			return
		}
		header := r.Header.Get("Authorization")
		if header == "" && p.loggedIn(r) {
			p.pass(w, r, next)
			return
		}
		if header != "" {
			right, wait := p.options.Tokens.Check(r.RemoteAddr, Bearer(header))
			if right {
				p.pass(w, r, next)
				return
			}
			p.logRefused(r, "a request with a wrong token was refused")
			if wait > 0 {
				retryAfter(w, wait)
				fail(w, http.StatusTooManyRequests, TooMany(wait))
				return
			}
		}
		if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		fail(w, http.StatusUnauthorized, "the token is missing or wrong: send it as Authorization: Bearer TOKEN, or log in at /login")
	})
}

// pass serves a request with credentials, or one that needs none.
func (p *Page) pass(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if p.options.Admitted != nil {
		p.options.Admitted(r)
	}
	next.ServeHTTP(w, r)
}

// TooMany is the text for a client whose token was not compared.
func TooMany(wait time.Duration) string {
	return fmt.Sprintf("too many wrong tokens came from this address: try again in %d s", wholeSeconds(wait))
}

func wholeSeconds(wait time.Duration) int { return int(math.Ceil(wait.Seconds())) }

func retryAfter(w http.ResponseWriter, wait time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(wholeSeconds(wait)))
}

func (p *Page) loggedIn(r *http.Request) bool {
	return p.options.Tokens != nil && p.sessions.valid(p.sessions.number(r), p.options.Tokens.current())
}

// admits reports whether a request that was admitted still has credentials. Other requests must not
// be asked about: admits bounds no guesses.
func (p *Page) admits(r *http.Request) bool {
	if p.options.Tokens == nil {
		return true
	}
	if header := r.Header.Get("Authorization"); header != "" {
		return p.options.Tokens.Right(Bearer(header))
	}
	return p.loggedIn(r)
}

func (p *Page) loginForm(w http.ResponseWriter, r *http.Request) {
	if p.options.Tokens == nil || p.loggedIn(r) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	p.showLogin(w, http.StatusOK, "")
}

func (p *Page) showLogin(w http.ResponseWriter, code int, message string) {
	if p.options.Tokens.None() {
		message = "The server has no token now, so nobody can log in. The log of the server says why."
	}
	show(w, code, "login.html", "$MESSAGE", message)
}

// logIn takes the token of the form.
func (p *Page) logIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
	if p.options.Tokens == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	token := strings.TrimSpace(r.PostFormValue("token"))
	right, wait := p.options.Tokens.Check(r.RemoteAddr, token)
	if !right {
		p.logRefused(r, "a login with a wrong token was refused")
		if wait > 0 {
			retryAfter(w, wait)
			p.showLogin(w, http.StatusTooManyRequests,
				fmt.Sprintf("Too many wrong tokens came from this address. Try again in %d s.", wholeSeconds(wait)))
			return
		}
		p.showLogin(w, http.StatusForbidden, "The token is wrong.")
		return
	}
	p.sessions.end(p.sessions.number(r)) // a browser has one session
	p.sessions.set(w, r, p.sessions.begin(token), sessionAge)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// logOut ends the session, here and in the browser. The open pages of the session end when they
// write next.
func (p *Page) logOut(w http.ResponseWriter, r *http.Request) {
	if number := p.sessions.number(r); number != "" { // also while the token cannot be read: it comes back, and the session must not
		p.sessions.end(number)
		p.sessions.set(w, r, "", 0)
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
