package page

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// sessionAge is the time from a login to the next one.
const sessionAge = 12 * time.Hour

// A session is a cookie in place of the token: an end and a random number, signed with the token (HMAC, RFC 2104). The server remembers nothing. Another token ends all sessions.

// cookieName returns the name of the cookie for a token. Browsers do not tell ports apart, and several Weirs may be at localhost.
func cookieName(token string) string { return "weir_" + hex.EncodeToString(sign(token, "name"))[:8] }

// sign returns the signature of a text.
func sign(token, text string) []byte {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// newSession returns a value of the cookie that is valid until an instant.
func newSession(token string, until time.Time) string {
	body := strconv.FormatInt(until.Unix(), 10) + "." + rand.Text()
	return body + "." + base64.RawURLEncoding.EncodeToString(sign(token, "session "+body))
}

// validSession reports whether a value of the cookie is signed and still valid.
func validSession(token, value string, now time.Time) bool {
	at := strings.LastIndexByte(value, '.')
	if at < 0 {
		return false
	}
	got, err := base64.RawURLEncoding.DecodeString(value[at+1:])
	if err != nil || !hmac.Equal(got, sign(token, "session "+value[:at])) {
		return false
	}
	end, _, _ := strings.Cut(value, ".")
	until, err := strconv.ParseInt(end, 10, 64)
	return err == nil && now.Before(time.Unix(until, 0))
}

// Equal reports whether two secrets are equal, in a time that does not depend on them.
func Equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// Bearer returns the token of an Authorization header; "" without one.
func Bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// Admits reports whether a request has credentials, or needs none.
func (p *Page) Admits(r *http.Request) bool { return p.admitted(r) }

// admitted reports whether a request has the token, or the cookie that stands for it.
func (p *Page) admitted(r *http.Request) bool {
	if p.options.Token == nil {
		return true
	}
	token := p.options.Token()
	if token == "" {
		return false
	}
	if header := r.Header.Get("Authorization"); header != "" {
		return Equal(Bearer(header), token)
	}
	c, err := r.Cookie(cookieName(token))
	return err == nil && validSession(token, c.Value, time.Now())
}

// cookie returns the cookie with a value.
func cookie(r *http.Request, token, value string, age time.Duration) *http.Cookie {
	c := &http.Cookie{
		Name: cookieName(token), Value: value, Path: "/", MaxAge: int(age / time.Second),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	}
	if age <= 0 {
		c.MaxAge = -1
	}
	return c
}
