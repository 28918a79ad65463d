package model

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/conformance/internal/forms"
)

// An Entry is an entry of a descriptor.
type Entry struct{ Key, Value string }

func entriesOf(d *commonv3.RateLimitDescriptor) []Entry {
	var all []Entry
	for _, e := range d.GetEntries() {
		all = append(all, Entry{e.GetKey(), e.GetValue()})
	}
	return all
}

// Hooks are the parts of a service, in the order of a request. A mutant replaces one of them.
type Hooks struct {
	Check        func(*ratelimitv3.RateLimitRequest) error
	Domain       func(domain string) string // the name that rules are looked up by
	Hits         func(*ratelimitv3.RateLimitRequest, *commonv3.RateLimitDescriptor) (hits uint64, refund bool)
	Find         func(nodes []*Node, e Entry) *Node
	Missed       func(found *Node) *Node // the rule of a descriptor whose next entry no rule has
	OverrideUnit func(unit int32) (string, error)
	Override     func(b *bill, node *Node) // changes the bill of an override
	Seconds      func(unit string) int64
	Key          func(domain string, path []Entry) string
	KeyOfLimit   func(algorithm string, seconds int64) string
	Replace      func(bills []*bill, found []*Node) []*bill
	Store        func(ctx context.Context) error // asks Redis, where there is one
	Lock         sync.Locker
	Now          func() time.Time
	Window       func(key string, now time.Time, seconds int64) (number int64, left time.Duration)
	Carry        func(count uint64) uint64 // of a window into the next one
	Full         func(tokens, burst float64) float64
	Over         func(used, hits, limit uint64) bool
	Charge       func(hits uint64, over bool) uint64
	Refund       func(hits, used uint64) uint64
	Remaining    func(used, limit uint64) uint64
	Reset        func(left time.Duration) int64
	Verdict      func(bills []*bill) bool
	Shadow       bool // shadow_mode shows in statuses
	Unlimited    uint32
	Unit         func(name string) ratelimitv3.RateLimitResponse_RateLimit_Unit
	Metadata     func(*ratelimitv3.RateLimitRequest, []*ratelimitv3.RateLimitResponse_DescriptorStatus, []*Node) *structpb.Struct
	Headers      func(bills []*bill) []*corev3.HeaderValue
	Finish       func(*ratelimitv3.RateLimitRequest, *ratelimitv3.RateLimitResponse) *ratelimitv3.RateLimitResponse

	// Parts of the program.
	Reloaded   func(s *Service) // after other rules came into force
	Broken     func(old map[string]*Domain) map[string]*Domain
	Health     []string // names of health
	Reflection bool
	NoWatch    bool                                  // rules are read once
	Terminate  func(notServing, graceful func()) int // returns the exit code
	MaxMessage int
	Options    []grpc.ServerOption
	Listen     func(net.Listener) net.Listener
}

// Correct returns the hooks of a service without faults.
func Correct() Hooks {
	return Hooks{
		Check:        checkRequest,
		Domain:       func(d string) string { return d },
		Hits:         hitsOf,
		Find:         find,
		Missed:       func(*Node) *Node { return nil },
		OverrideUnit: overrideUnit,
		Override:     func(*bill, *Node) {},
		Seconds: func(unit string) int64 {
			seconds, _ := forms.Seconds(unit)
			return seconds
		},
		Key:        key,
		KeyOfLimit: func(algorithm string, seconds int64) string { return fmt.Sprintf("#%s/%d", algorithm, seconds) },
		Replace:    replace,
		Store:      askBriefly,
		Lock:       new(sync.Mutex),
		Now:        time.Now,
		Window:     window,
		Carry:      func(uint64) uint64 { return 0 },
		Full:       func(tokens, burst float64) float64 { return min(tokens, burst) },
		Over:       func(used, hits, limit uint64) bool { return used+hits > limit },
		Charge:     func(hits uint64, _ bool) uint64 { return hits },
		Refund:     func(hits, used uint64) uint64 { return min(hits, used) },
		Remaining:  func(used, limit uint64) uint64 { return limit - min(used, limit) },
		Reset:      func(left time.Duration) int64 { return int64((left + time.Second - 1) / time.Second) },
		Verdict:    verdict,
		Shadow:     true,
		Unlimited:  1<<32 - 1,
		Unit: func(name string) ratelimitv3.RateLimitResponse_RateLimit_Unit {
			return ratelimitv3.RateLimitResponse_RateLimit_Unit(ratelimitv3.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(name)])
		},
		Metadata: metadata,
		Headers:  headers,
		Finish: func(_ *ratelimitv3.RateLimitRequest, a *ratelimitv3.RateLimitResponse) *ratelimitv3.RateLimitResponse {
			return a
		},
		Reloaded:   func(*Service) {},
		Broken:     func(old map[string]*Domain) map[string]*Domain { return old },
		Health:     []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"},
		Reflection: true,
		Terminate: func(notServing, graceful func()) int {
			notServing()
			graceful()
			return 0
		},
		MaxMessage: 4 << 20,
		Listen:     func(l net.Listener) net.Listener { return l },
	}
}

// askBriefly asks Redis for a short time, and does without an answer.
func askBriefly(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	// Counts are in memory: an answer changes nothing.
	_ = Ping(ctx)
	return nil
}

func hitsOf(r *ratelimitv3.RateLimitRequest, d *commonv3.RateLimitDescriptor) (uint64, bool) {
	if d.GetHitsAddend() != nil {
		return d.GetHitsAddend().GetValue(), d.GetIsNegativeHits()
	}
	return uint64(max(1, r.GetHitsAddend())), d.GetIsNegativeHits()
}

// find looks for the exact value, then for the first wildcard, then for the key alone. The text of
// a wildcard is an exact value too.
func find(nodes []*Node, e Entry) *Node {
	exact := slices.IndexFunc(nodes, func(n *Node) bool { return n.Key == e.Key && n.Value != nil && *n.Value == e.Value })
	if exact < 0 {
		exact = slices.IndexFunc(nodes, func(n *Node) bool { return n.Key == e.Key && n.wildcard() && matches(*n.Value, e.Value) })
	}
	if exact < 0 {
		exact = slices.IndexFunc(nodes, func(n *Node) bool { return n.Key == e.Key && n.Value == nil })
	}
	if exact < 0 {
		return nil
	}
	return nodes[exact]
}

// matches reports whether a pattern, in which * stands for any characters, matches a text.
func matches(pattern, text string) bool {
	first, rest, found := strings.Cut(pattern, "*")
	if !found {
		return pattern == text
	}
	if !strings.HasPrefix(text, first) {
		return false
	}
	for i := len(first); i <= len(text); i++ {
		if matches(rest, text[i:]) {
			return true
		}
	}
	return false
}

func overrideUnit(unit int32) (string, error) {
	name, known := ratelimitv3.RateLimitResponse_RateLimit_Unit_name[unit]
	if !known || unit == 0 {
		return "", status.Errorf(codes.InvalidArgument, "unit %d is not known", unit)
	}
	return strings.ToLower(name), nil
}

// key has the length before each text, so that no two keys are equal.
func key(domain string, path []Entry) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d:%s", len(domain), domain)
	for _, e := range path {
		fmt.Fprintf(&b, "|%d:%s%d:%s", len(e.Key), e.Key, len(e.Value), e.Value)
	}
	return b.String()
}

// replace drops the limits of names that another limit of the request replaces.
func replace(bills []*bill, found []*Node) []*bill {
	names := make(map[string]bool)
	for _, n := range found {
		if n == nil {
			continue
		}
		for _, l := range n.limits() {
			for _, r := range l.ReplacesList {
				names[r.Name] = true
			}
		}
	}
	return slices.DeleteFunc(bills, func(b *bill) bool { return names[b.name] })
}

func window(_ string, now time.Time, seconds int64) (int64, time.Duration) {
	length := time.Duration(seconds) * time.Second
	return now.UnixNano() / int64(length), length - time.Duration(now.UnixNano()%int64(length))
}

// verdict reports whether a hard limit is over, or all quotas are.
func verdict(bills []*bill) bool {
	quotas, spent := 0, 0
	for _, b := range bills {
		over := b.over && !b.shadow
		switch {
		case b.quota && over:
			quotas, spent = quotas+1, spent+1
		case b.quota:
			quotas++
		case over:
			return true
		}
	}
	return quotas > 0 && quotas == spent
}
