package page

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// The bounds of wrong tokens. At ten a minute, all words of a large dictionary (half a million)
// take a month.
const (
	wrongOfOne = 10   // by one address at once, and each minute
	wrongOfAll = 100  // by all addresses at once; then one each second
	maxClients = 1000 // addresses with wrong tokens of the last minute
)

// The bounds of connections that have shown the right token.
const (
	provenAge = time.Hour // since then
	maxProven = 1000
)

// Tokens checks the tokens that clients show, and bounds guesses. A Tokens refuses the next token
// of an address with too many wrong ones, and does not compare it. While all addresses together
// show too many, those without a wrong one in the last minute may still try. Programs on this
// machine count as one address, which the others do not affect: an operator always has a way in.
//
// A connection that has shown the right token in the last hour has no bound until one is wrong.
// Other programs at the address do not keep its client out.
// All methods are safe for concurrent use.
type Tokens struct {
	current  func() string
	begun    time.Time // the zero of all instants
	one, all algorithms.Limit

	mu      sync.Mutex // guards the rest
	wrong   algorithms.State
	clients map[netip.Prefix]client
	proven  map[netip.AddrPort]algorithms.Instant // connections, by their last right token
}

// client is an address that showed a wrong token in the last minute.
type client struct {
	wrong algorithms.State
	at    algorithms.Instant // of its last wrong token
	last  [sha256.Size]byte  // digest of its last wrong token: once more the same is no guess
}

// quiet reports whether the client has shown no wrong token for a minute.
func (c *client) quiet(now algorithms.Instant) bool {
	return now-c.at >= algorithms.Instant(time.Minute)
}

// NewTokens returns a Tokens. current returns the right token, or "" without one, and must be safe
// for concurrent use.
func NewTokens(current func() string) *Tokens {
	return &Tokens{
		current: current, begun: time.Now(), clients: make(map[netip.Prefix]client), proven: make(map[netip.AddrPort]algorithms.Instant),
		one: algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: wrongOfOne, Period: time.Minute},
		all: algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: time.Second, Extra: algorithms.Extra{Burst: wrongOfAll}},
	}
}

// Check reports whether a client with an address (HOST:PORT) shows the right token. With a wait
// above 0 the token was not compared: the client should come again after that time.
func (t *Tokens) Check(address, shown string) (right bool, wait time.Duration) {
	if shown == "" { // no guess
		return false, 0
	}
	digest := sha256.Sum256([]byte(shown))
	from := network(address)
	t.mu.Lock()
	defer t.mu.Unlock()
	now := algorithms.Instant(time.Since(t.begun))
	right, wait = t.checkLocked(from, digest, now)
	at, err := netip.ParseAddrPort(address)
	switch {
	case err != nil: // a socket in a file: all its connections have one address
	case right:
		t.proveLocked(at, now)
	case wait > 0 && t.provenLocked(at, now) && t.equal(digest):
		t.proveLocked(at, now)
		return true, 0
	default:
		delete(t.proven, at)
	}
	return right, wait
}

// proveLocked notes the right token of a connection. At the bound any other one goes.
func (t *Tokens) proveLocked(at netip.AddrPort, now algorithms.Instant) {
	if _, known := t.proven[at]; !known && len(t.proven) >= maxProven {
		for other := range t.proven {
			if !t.provenLocked(other, now) {
				delete(t.proven, other)
			}
		}
		for other := range t.proven {
			if len(t.proven) < maxProven {
				break
			}
			delete(t.proven, other)
		}
	}
	t.proven[at] = now
}

func (t *Tokens) provenLocked(at netip.AddrPort, now algorithms.Instant) bool {
	last, known := t.proven[at]
	return known && now-last < algorithms.Instant(provenAge)
}

func (t *Tokens) checkLocked(from netip.Prefix, digest [sha256.Size]byte, now algorithms.Instant) (right bool, wait time.Duration) {
	c, known := t.clients[from]
	if known && c.last == digest {
		return t.equal(digest), 0
	}
	next, d := algorithms.Take(t.one, c.wrong, now, 1, false)
	if !d.Allowed {
		return false, d.RetryAfter
	}
	wrong := t.wrong
	if from.IsValid() { // not this machine
		if wrong, d = algorithms.Take(t.all, t.wrong, now, 1, false); !d.Allowed && known && !c.quiet(now) {
			return false, d.RetryAfter
		}
		if !known && !t.roomLocked(now) {
			return false, t.one.Period / wrongOfOne
		}
	}
	if t.equal(digest) {
		return true, 0
	}
	t.wrong, t.clients[from] = wrong, client{next, now, digest}
	return false, 0
}

// Right reports whether a token is the right one, for a client that Check has let pass.
func (t *Tokens) Right(shown string) bool { return t.equal(sha256.Sum256([]byte(shown))) }

// None reports whether there is no token now, so that nobody is admitted.
func (t *Tokens) None() bool { return t.current() == "" }

// equal compares digests, in a time that does not depend on them.
func (t *Tokens) equal(digest [sha256.Size]byte) bool {
	token := t.current()
	own := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(own[:], digest[:]) == 1 && token != ""
}

// roomLocked reports whether there is room for one more address. In a full table, addresses go that
// have been quiet for a minute.
func (t *Tokens) roomLocked(now algorithms.Instant) bool {
	if len(t.clients) < maxClients {
		return true
	}
	for at, c := range t.clients {
		if c.quiet(now) {
			delete(t.clients, at)
		}
	}
	return len(t.clients) < maxClients
}

// network returns the addresses that count as one with an address. A client of IPv6 has 64 bits of
// its own. All of this machine are one. The zero Prefix stands for an address that is not of IP,
// such as one of a socket in a file.
func network(address string) netip.Prefix {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{}
	}
	ip := at.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	switch {
	case ip.IsLoopback():
		return netip.Prefix{}
	case ip.Is6():
		bits = 64
	}
	of, _ := ip.Prefix(bits) // the bits fit
	return of
}

// Bearer returns the token of an Authorization header; "" without one.
func Bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
