package server

import (
	"fmt"
	"mime"
	"net/http"
	"net/netip"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/internal/wire/web"
)

// JSON chooses the clients of /json and their powers. The zero value takes requests that charge
// hits, from programs on this machine.
type JSON struct {
	From      JSONFrom // the addresses that requests may come from
	Hosts     []string // names that a Host header may have, without port, in any case; localhost and IP addresses always may
	Refunds   bool     // a descriptor may have is_negative_hits
	Overrides bool     // a descriptor may have a limit
	AnyClient bool     // as in envoyproxy/ratelimit: Content-Type, Origin and Host do not matter
}

// JSONFrom is a set of addresses that requests of /json may come from.
type JSONFrom int

// The sets of addresses. JSONFromLoopback also refuses requests that a proxy forwarded.
const (
	JSONFromLoopback JSONFrom = iota
	JSONFromAnywhere
	JSONOff // there is no page
)

// check returns a mistake, nil without one.
func (j *JSON) check() error {
	if j.From < JSONFromLoopback || j.From > JSONOff {
		return fmt.Errorf("json: from %d: must be JSONFromLoopback, JSONFromAnywhere or JSONOff", j.From)
	}
	return nil
}

type refusal struct {
	code int
	text string
}

// refuse returns the reason why the client may not use /json, nil without one. refuse reads the
// headers alone.
func (j *JSON) refuse(r *http.Request) *refusal {
	if j.From == JSONFromLoopback {
		if !fromLoopback(r) {
			return &refusal{http.StatusForbidden, "/json takes requests from loopback addresses only, not from " + r.RemoteAddr}
		}
		if name := web.Forwarded(r.Header); name != "" {
			return &refusal{http.StatusForbidden, "/json takes requests of this machine only, and a proxy forwarded this one: it has the header " + name}
		}
	}
	if j.AnyClient {
		return nil
	}
	if !web.Named(r.Host, j.Hosts) {
		return &refusal{http.StatusMisdirectedRequest, fmt.Sprintf("Host: %q: /json is at localhost, at IP addresses, and at names that the operator has listed", r.Host)}
	}
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		return &refusal{http.StatusForbidden, "/json takes no requests of pages of other sites: " + err.Error()}
	}
	// A web page cannot send this type to another site without asking that site first.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type: %q: must be application/json", r.Header.Get("Content-Type"))}
	}
	return nil
}

func fromLoopback(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback()
}

// refuseContent returns the first reason why /json does not take a request, nil without one.
func (j *JSON) refuseContent(request *ratelimitv3.RateLimitRequest) error {
	for i, d := range request.GetDescriptors() {
		if d.GetIsNegativeHits() && !j.Refunds {
			return fmt.Errorf("descriptors[%d].is_negative_hits: /json does not take refunds here", i)
		}
		if d.GetLimit() != nil && !j.Overrides {
			return fmt.Errorf("descriptors[%d].limit: /json does not take overrides here", i)
		}
	}
	return nil
}
