package page

import (
	"fmt"
	"net/http"

	"github.com/weirproxy/weir/internal/wire/web"
)

// policy is the Content-Security-Policy of every answer: style, script, pictures and data of this
// address alone, nothing inline, no frames.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// refusal is the answer to a request that may not pass the gate.
type refusal struct {
	code int
	text string
}

// guard returns a handler behind the gate: every answer has strict headers, and no request comes
// from a page of another site.
func (p *Page) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // "no-referrer" would make the Origin of a form null
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store") // keys name customers
		if no := p.refuse(r); no != nil {
			fail(w, no.code, no.text)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refuse returns the reason why a request may not pass, nil without one. The function reads the
// headers alone, and asks for no credentials.
func (p *Page) refuse(r *http.Request) *refusal {
	if !web.Named(r.Host, p.options.Hosts) {
		return &refusal{http.StatusMisdirectedRequest, fmt.Sprintf("Host: %q: this page is at localhost, at IP addresses, "+
			"and at names that the operator has listed: see the setting hosts", r.Host)}
	}
	if err := p.crossOrigin.Check(r); err != nil {
		return &refusal{http.StatusForbidden, "requests of pages of other sites are refused: " + err.Error()}
	}
	if p.options.Tokens != nil {
		return nil
	}
	// Without credentials a proxy would let everybody in who reaches it.
	if name := web.Forwarded(r.Header); name != "" && !secured(r) {
		return &refusal{http.StatusForbidden, fmt.Sprintf("a proxy forwarded this request: it has the header %s. "+
			"Behind a proxy this page needs a token: see the setting admin-token-file", name)}
	}
	return nil
}

// secured reports whether the client has shown a valid certificate.
func secured(r *http.Request) bool { return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 }

func fail(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text)
}
