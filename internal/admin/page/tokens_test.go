package page

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const stranger, operator, here = "203.0.113.9:1000", "198.51.100.7:1000", "127.0.0.1:1000"

// guess shows wrong tokens that differ, and returns how many were compared.
func guess(k *Tokens, address string, times int) (compared int) {
	for i := range times {
		if right, wait := k.Check(address, fmt.Sprintf("guess %s %d %d", address, i, time.Now().UnixNano())); !right && wait == 0 {
			compared++
		}
	}
	return compared
}

func right(k *Tokens, address string) bool {
	ok, _ := k.Check(address, secret)
	return ok
}

func newTokens() *Tokens { return NewTokens(func() string { return secret }) }

func TestGuessesOfOneAddressAreTenAMinute(t *testing.T) {
	for _, address := range []string{stranger, here, "a socket"} {
		synctest.Test(t, func(t *testing.T) {
			k := newTokens()
			if n := guess(k, address, 1000); n != wrongOfOne {
				t.Errorf("%s: %d compared at once, want %d", address, n, wrongOfOne)
			}
			if ok, wait := k.Check(address, secret); ok || wait != 6*time.Second {
				t.Errorf("%s: the right token after them: got %t, wait %v; want a wait of 6s, else guesses have no bound", address, ok, wait)
			}
			time.Sleep(6*time.Second - 1)
			if right(k, address) {
				t.Errorf("%s: compared too early", address)
			}
			time.Sleep(time.Nanosecond)
			if !right(k, address) {
				t.Errorf("%s: refused after the wait", address)
			}
			n := 0
			for range 600 {
				n += guess(k, address, 5)
				time.Sleep(time.Second)
			}
			if n > 101 {
				t.Errorf("%s: %d compared in ten minutes, want 10 a minute", address, n)
			}
		})
	}
}

func TestTheRightTokenCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTokens()
		guess(k, operator, wrongOfOne-1)
		for i := range 1000 {
			if !right(k, operator) {
				t.Fatalf("refused after %d right tokens", i)
			}
		}
	})
}

// Any program on this machine can show wrong tokens. A client keeps its open connection.
func TestWrongTokensDoNotKeepOutAConnectionThatHasShownTheRightOne(t *testing.T) {
	const open, other = "127.0.0.1:5000", "127.0.0.1:6000"
	synctest.Test(t, func(t *testing.T) {
		k := newTokens()
		if !right(k, open) {
			t.Fatal("refused at first")
		}
		for range 100 {
			guess(k, here, 100)
			if !right(k, open) {
				t.Fatal("the open connection is refused")
			}
			if right(k, other) {
				t.Fatal("a new connection is admitted beyond the bound")
			}
			time.Sleep(provenAge / 2)
		}
		guess(k, here, 100)
		if n := guess(k, open, 100); n != 0 || right(k, open) {
			t.Errorf("a connection with a wrong token: %d compared, right %t; want its proof gone, else guesses have no bound", n, right(k, open))
		}
		time.Sleep(time.Minute)
		if !right(k, open) {
			t.Fatal("refused after a minute")
		}
		time.Sleep(provenAge)
		if guess(k, here, 100); right(k, open) {
			t.Error("admitted an hour after its last right token")
		}
	})
}

func TestConnectionsThatHaveShownTheRightTokenAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTokens()
		for i := range 3 * maxProven {
			if !right(k, fmt.Sprintf("127.0.0.1:%d", 1+i)) {
				t.Fatalf("connection %d is refused", i)
			}
		}
		if n := len(k.proven); n != maxProven {
			t.Errorf("%d are kept, want %d", n, maxProven)
		}
	})
}

// A probe with an old token must not keep out the operator at its address.
func TestTheSameWrongTokenIsOneGuess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTokens()
		for range 1000 {
			if ok, wait := k.Check(operator, "an old token"); ok || wait != 0 {
				t.Fatalf("got %t, wait %v", ok, wait)
			}
		}
		if !right(k, operator) {
			t.Error("the right token is refused")
		}
	})
}

func TestGuessesOfManyAddressesKeepNoOperatorOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTokens()
		n := 0
		for i := range 500 {
			n += guess(k, fmt.Sprintf("203.0.%d.%d:1", i/250, i%250), 10)
		}
		if n > wrongOfAll+500 { // each address has one
			t.Errorf("%d compared, want at most %d", n, wrongOfAll+500)
		}
		if !right(k, operator) || !right(k, here) {
			t.Errorf("the right token: from another address %t, from this machine %t; want true", right(k, operator), right(k, here))
		}
	})
}

func TestAFloodOfAddressesIsBoundedAndThisMachineIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTokens()
		n := 0
		for i := range 5 * maxClients {
			n += guess(k, fmt.Sprintf("10.0.%d.%d:1", i/250, i%250), 1)
		}
		if n != maxClients || len(k.clients) != maxClients {
			t.Errorf("%d compared, %d kept; want %d of both", n, len(k.clients), maxClients)
		}
		if !right(k, here) || guess(k, here, 1) != 1 {
			t.Error("this machine is refused")
		}
		time.Sleep(time.Minute)
		if !right(k, operator) || guess(k, operator, 1) != 1 || len(k.clients) > 2 {
			t.Errorf("a minute later: %d addresses are kept", len(k.clients))
		}
	})
}

func TestANetworkIsOneAddress(t *testing.T) {
	for address, want := range map[string]string{
		"203.0.113.9:1": "203.0.113.9/32", "[::ffff:203.0.113.9]:1": "203.0.113.9/32", "[2001:db8::1:2:3:4]:1": "2001:db8::/64", "[fe80::1%eth0]:1": "fe80::/64",
		"127.0.0.1:1": "", "127.9.9.9:1": "", "[::1]:1": "", "": "", "@": "", "bufconn": "",
	} {
		var prefix netip.Prefix
		if want != "" {
			prefix = netip.MustParsePrefix(want)
		}
		if got := network(address); got != prefix {
			t.Errorf("%q: got %v, want %q", address, got, want)
		}
	}
}

func TestATokenThatChangesIsTheRightOneAtOnce(t *testing.T) {
	token := "the token of before"
	k := NewTokens(func() string { return token })
	if right(k, operator) {
		t.Error("a later token is right")
	}
	token = secret
	if !right(k, operator) {
		t.Error("the new token is refused")
	}
}

// Neither the form nor a header nor the way to the form tells more about a token than Check.
func TestThePageBoundsGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newPage(t, withToken)
		session := "Cookie: " + f.sessions.cookie + "=" + f.sessions.begin(secret)
		form := func(token string) *http.Response {
			return f.ask("POST", "/login", url.Values{"token": {token}}.Encode(), "Content-Type: application/x-www-form-urlencoded")
		}
		for i := range wrongOfOne {
			if got := form(fmt.Sprint(i)); got.StatusCode != http.StatusForbidden {
				t.Fatalf("%d: got %d, want 403", i, got.StatusCode)
			}
		}
		got := form(secret)
		if body := text(t, got); got.StatusCode != http.StatusTooManyRequests || got.Header.Get("Retry-After") != "6" || !strings.Contains(body, "Try again in 6 s") || len(got.Cookies()) > 0 {
			t.Errorf("got %d, %v %s", got.StatusCode, got.Header, body)
		}
		got = f.ask("GET", "/nothing", "", "Authorization: Bearer "+secret)
		if body := text(t, got); got.StatusCode != http.StatusTooManyRequests || got.Header.Get("Retry-After") != "6" || !strings.Contains(body, "try again in 6 s") {
			t.Errorf("a header: got %d, %v %s", got.StatusCode, got.Header, body)
		}
		if got := f.ask("GET", "/login", "", "Authorization: Bearer "+secret); got.StatusCode != http.StatusOK {
			t.Errorf("the form with a header: got %d, want 200 for every token", got.StatusCode)
		}
		if got := f.ask("POST", "/logout", "", "Authorization: Bearer "+secret); len(got.Cookies()) > 0 {
			t.Errorf("the logout with a header: cookies %v", got.Cookies())
		}
		if got := f.ask("GET", "/nothing", "", session); got.StatusCode != http.StatusNotFound {
			t.Errorf("a session: got %d, want 404: guesses of others do not end it", got.StatusCode)
		}
		time.Sleep(6 * time.Second)
		if got := form(secret); got.StatusCode != http.StatusSeeOther {
			t.Errorf("after the wait: got %d, want 303", got.StatusCode)
		}
	})
}

// An address without a wrong token in the last minute may try. So many addresses have more attempts
// than one: still too few for a dictionary.
func TestGuessesOfAThousandAddressesAreSomeAThousandAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, n := newTokens(), 0
		for range 5 * 60 {
			for i := range maxClients {
				n += guess(k, fmt.Sprintf("[2001:db8:0:%x::1]:1", i), 1)
			}
			time.Sleep(time.Second)
		}
		if most := wrongOfAll + 5*(60+maxClients); n > most {
			t.Errorf("%d compared in five minutes, want at most %d", n, most)
		}
	})
}
