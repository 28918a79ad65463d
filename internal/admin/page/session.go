package page

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"
)

// sessionAge is the time from a login to the next one.
const sessionAge = 12 * time.Hour

// maxSessions bounds the sessions. One more ends the oldest.
const maxSessions = 1000

// sessions is the logins of now. A session is a random number in a cookie, without a signature.
// Browsers do not tell ports apart: other programs at localhost get the cookie too, and could try
// tokens against a signature. All methods are safe for concurrent use.
type sessions struct {
	cookie string // the name, different in each process: several Weirs may be at localhost

	mu sync.Mutex                    // guards of
	of map[[sha256.Size]byte]session // by the digest of the number
}

type session struct {
	token [sha256.Size]byte // digest of the token: another token ends all sessions
	until time.Time
}

func newSessions() *sessions {
	return &sessions{cookie: "weir_" + rand.Text()[:8], of: make(map[[sha256.Size]byte]session)}
}

// begin returns the number of a new session by a token.
func (s *sessions) begin(token string) string {
	number, now := rand.Text(), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.of) >= maxSessions {
		var oldest [sha256.Size]byte
		first := now.Add(sessionAge)
		for at, one := range s.of {
			if !one.until.After(first) {
				oldest, first = at, one.until
			}
		}
		delete(s.of, oldest)
	}
	s.of[sha256.Sum256([]byte(number))] = session{sha256.Sum256([]byte(token)), now.Add(sessionAge)}
	return number
}

// valid reports whether a number is of a session by a token.
func (s *sessions) valid(number, token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.of[sha256.Sum256([]byte(number))]
	return ok && token != "" && one.token == sha256.Sum256([]byte(token)) && time.Now().Before(one.until)
}

// end ends a session, if there is one.
func (s *sessions) end(number string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, sha256.Sum256([]byte(number)))
}

// number returns the number that a request shows; "" without one.
func (s *sessions) number(r *http.Request) string {
	c, err := r.Cookie(s.cookie)
	if err != nil {
		return ""
	}
	return c.Value
}

// set sets the cookie; the age 0 removes it.
func (s *sessions) set(w http.ResponseWriter, r *http.Request, number string, age time.Duration) {
	c := &http.Cookie{
		Name: s.cookie, Value: number, Path: "/", MaxAge: int(age / time.Second),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	}
	if age <= 0 {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}
