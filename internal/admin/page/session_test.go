package page

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestASessionEndsAtItsInstantAndWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions()
		number := s.begin(secret)
		if !s.valid(number, secret) || s.valid(number, secret+"x") || s.valid(number, "") || s.valid("", secret) || s.valid(number+"x", secret) {
			t.Error("a session must be valid by its own number and token alone")
		}
		time.Sleep(sessionAge - 1)
		if !s.valid(number, secret) {
			t.Error("the session ended before 12 hours")
		}
		time.Sleep(time.Nanosecond)
		if s.valid(number, secret) {
			t.Error("the session is valid after 12 hours")
		}
	})
}

func TestALogoutEndsItsSessionAlone(t *testing.T) {
	s := newSessions()
	one, other := s.begin(secret), s.begin(secret)
	s.end(one)
	if s.valid(one, secret) || !s.valid(other, secret) {
		t.Errorf("valid: %t, %t; want false, true", s.valid(one, secret), s.valid(other, secret))
	}
}

func TestSessionsAreBoundedAndTheOldestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions()
		first := s.begin(secret)
		time.Sleep(time.Nanosecond)
		second := s.begin(secret)
		for range maxSessions - 1 {
			time.Sleep(time.Nanosecond)
			s.begin(secret)
		}
		if len(s.of) != maxSessions || s.valid(first, secret) || !s.valid(second, secret) {
			t.Errorf("%d sessions, the first valid: %t, the second: %t; want %d, false, true", len(s.of), s.valid(first, secret), s.valid(second, secret), maxSessions)
		}
	})
}

// A token file may be unreadable for a moment, as while Kubernetes changes a Secret.
func TestALogoutEndsASessionWhoseTokenCannotBeReadNow(t *testing.T) {
	token := secret
	f := newPage(t, func(o *Options) { o.Tokens = NewTokens(func() string { return token }) })
	cookie := "Cookie: " + f.sessions.cookie + "=" + f.sessions.begin(secret)
	token = ""
	if got := f.ask("POST", "/logout", "", cookie); len(got.Cookies()) != 1 || got.Cookies()[0].MaxAge >= 0 {
		t.Errorf("logout: cookies %v", got.Cookies())
	}
	token = secret
	if got := f.ask("GET", "/nothing", "", cookie); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("after the logout: got %d, want 401", got.StatusCode)
	}
}

func TestALoginEndsTheSessionBefore(t *testing.T) {
	f := newPage(t, withToken)
	cookie := "Cookie: " + f.sessions.cookie + "=" + f.sessions.begin(secret)
	if got := f.ask("POST", "/login", "token="+secret, "Content-Type: application/x-www-form-urlencoded", cookie); got.StatusCode != http.StatusSeeOther {
		t.Fatalf("login: got %d", got.StatusCode)
	}
	if got := f.ask("GET", "/nothing", "", cookie); got.StatusCode != http.StatusUnauthorized || len(f.sessions.of) != 1 {
		t.Errorf("the session before: got %d, want 401; %d sessions", got.StatusCode, len(f.sessions.of))
	}
}

// A logout on one tab must not leave the figures on another.
func TestALogoutEndsTheOpenPagesOfItsSession(t *testing.T) {
	f := newPage(t, func(o *Options) {
		withToken(o)
		o.Service = new(counters)
	})
	cookie := f.sessions.cookie + "=" + f.sessions.begin(secret)
	s := httptest.NewServer(f)
	t.Cleanup(func() { f.Close(); s.CloseClientConnections(); s.Close() })
	f.Begin()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", cookie)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if got := f.ask("POST", "/logout", "", "Cookie: "+cookie); got.StatusCode != http.StatusSeeOther {
		t.Fatalf("logout: got %d", got.StatusCode)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Errorf("the page goes on: %v", err)
	}
}
