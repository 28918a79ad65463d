package server

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Bounds of the log lines about domains without rules.
const (
	unknownEvery  = time.Minute      // between two lines about one domain
	unknownMost   = 100              // domains with lines of their own; all others share one
	unknownBytes  = 256              // longest name of such a domain
	unknownForget = 10 * time.Minute // until other domains may have lines of their own
)

// unknownDomains warns of requests whose domain has no rules: at most once a minute for each
// domain. Clients choose the names, so their number is bounded. Safe for concurrent use.
type unknownDomains struct {
	logger *slog.Logger
	known  atomic.Pointer[map[string]*loglimit.Limiter] // by domain; never changed
	others loglimit.Limiter                             // of domains beyond the bounds
	fresh  loglimit.Limiter                             // passes when known may be forgotten

	mu sync.Mutex // held while known changes
}

// note warns of a call whose domain has no rules, if a line is due. rules must be the rules in
// force.
func (u *unknownDomains) note(c *call, rules *descriptors.Rules) {
	missed, ok := u.of(c.request.Domain).Due(unknownEvery)
	if !ok {
		return
	}
	beside, _ := rules.NearestDomains(c.request.Domain)
	var entries string
	if len(c.request.Descriptors) > 0 {
		entries = printable.Entries(c.request.Descriptors[0].Entries)
	}
	u.logger.LogAttrs(context.Background(), slog.LevelWarn, "a request names a domain without rules, and is not limited",
		slog.String("domain", printable.Text(c.request.Domain)), slog.String("descriptor", entries), slog.String("client", c.clientText()),
		slog.String("domains_with_rules", strings.Join(beside, ", ")), slog.Uint64("not_logged", missed))
}

func (u *unknownDomains) of(domain string) *loglimit.Limiter {
	known := u.known.Load()
	if known != nil {
		if l := (*known)[domain]; l != nil {
			return l
		}
	}
	if len(domain) > unknownBytes {
		return &u.others
	}
	full := known != nil && len(*known) >= unknownMost
	if full {
		if _, ok := u.fresh.Due(unknownForget); !ok {
			return &u.others
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make(map[string]*loglimit.Limiter)
	if known = u.known.Load(); known != nil && !full {
		if l := (*known)[domain]; l != nil {
			return l
		}
		if len(*known) >= unknownMost { // since a moment ago
			return &u.others
		}
		maps.Copy(all, *known)
	}
	if len(all) == 0 && !full {
		u.fresh.Due(unknownForget) // begins the time
	}
	l := new(loglimit.Limiter)
	all[strings.Clone(domain)] = l
	u.known.Store(&all)
	return l
}

func (c *call) clientText() string {
	var addr net.Addr
	if c.client != nil {
		addr = c.client.RemoteAddr()
	} else {
		if p, ok := peer.FromContext(c.ctx); ok {
			addr = p.Addr
		}
	}
	switch {
	case addr == nil:
		return "not known"
	case addr.Network() == "unix":
		return "a Unix socket"
	default:
		return addr.String()
	}
}

// browsing is the client of a request for a page.
type browsing struct{ *http.Request }

func (b browsing) RemoteAddr() net.Addr { return textAddr(b.Request.RemoteAddr) }

type textAddr string

func (textAddr) Network() string { return "tcp" }

func (a textAddr) String() string { return string(a) }
