package model

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

func ruleMutants() []mutant {
	// looked changes the nodes or the entry of a look-up.
	looked := func(change func(nodes []*Node, e Entry) ([]*Node, Entry)) func(h *Hooks) {
		return func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node { return find(change(nodes, e)) }
		}
	}
	without := func(drop func(n *Node) bool) func(h *Hooks) {
		return looked(func(nodes []*Node, e Entry) ([]*Node, Entry) {
			return slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool { return n.Key != "ready" && drop(n) }), e
		})
	}
	return []mutant{
		{"ignores case in domains", "basics/domain-is-case-sensitive", func(h *Hooks) { h.Domain = strings.ToLower }},
		{"takes a prefix of a domain", "basics/domain-prefix-is-another-domain", func(h *Hooks) {
			h.Domain = func(d string) string {
				if d == "basic" {
					return "basics"
				}
				return d
			}
		}},
		{"takes unknown domains as another one", "basics/unknown-domain-is-ok overrides/override-of-an-unknown-domain", func(h *Hooks) {
			h.Domain = func(d string) string { return strings.TrimSuffix(d, "-unknown") }
		}},
		{"ignores case in keys of rules", "basics/key-is-case-sensitive", looked(func(nodes []*Node, e Entry) ([]*Node, Entry) {
			return nodes, Entry{strings.ToLower(e.Key), e.Value}
		})},
		{"ignores case in values of rules", "matching/value-is-case-sensitive", looked(func(nodes []*Node, e Entry) ([]*Node, Entry) {
			if e.Key == "run" {
				return nodes, e
			}
			return nodes, Entry{e.Key, strings.ToLower(e.Value)}
		})},
		{"trims values of rules", "matching/blanks-of-a-value-count", looked(func(nodes []*Node, e Entry) ([]*Node, Entry) {
			return nodes, Entry{e.Key, strings.TrimSpace(e.Value)}
		})},
		{"takes values of rules as prefixes", "matching/value-prefix-does-not-match", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				for _, n := range nodes {
					if n.Key == e.Key && n.Value != nil && *n.Value != "" && !n.wildcard() && strings.HasPrefix(e.Value, *n.Value) {
						return n
					}
				}
				return find(nodes, e)
			}
		}},
		{"takes keys of rules as prefixes", "basics/key-prefix-does-not-match", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				if n := find(nodes, e); n != nil {
					return n
				}
				for _, n := range nodes {
					if strings.HasPrefix(e.Key, n.Key) && n.Value == nil {
						return n
					}
				}
				return nil
			}
		}},
		{"reads values as numbers", "matching/value-number-is-text", looked(func(nodes []*Node, e Entry) ([]*Node, Entry) {
			return nodes, Entry{e.Key, strings.ToLower(strings.TrimLeft(strings.TrimSuffix(e.Value, "0"), "0"))}
		})},
		{"does not match values", "matching/exact-value", without(func(n *Node) bool { return n.Value != nil && !n.wildcard() })},
		{"does not match keys alone", "matching/key-alone-limits-the-rest", without(func(n *Node) bool {
			return n.Value == nil && n.Key != "run"
		})},
		{"prefers the key alone", "matching/exact-value-shows-its-limit", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				for _, n := range nodes {
					if n.Key == e.Key && n.Value == nil {
						return n
					}
				}
				return find(nodes, e)
			}
		}},
		{"takes the first rule of a key", "matching/other-value-without-rule", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				if n := find(nodes, e); n != nil {
					return n
				}
				for _, n := range nodes {
					if n.Key == e.Key {
						return n
					}
				}
				return nil
			}
		}},
		{"falls back past a whitelist", "matching/whitelist-beats-the-key-alone", without(func(n *Node) bool {
			return n.Value != nil && n.RateLimit == nil && len(n.Descriptors) == 0
		})},
		{"takes an empty value as no value", "matching/empty-value-matches-exactly", without(func(n *Node) bool {
			return n.Value != nil && *n.Value == ""
		})},
		{"applies outer limits to longer descriptors", "matching/longer-descriptor-has-no-limit", func(h *Hooks) {
			var last *Node
			var mu sync.Mutex
			h.Find = func(nodes []*Node, e Entry) *Node {
				mu.Lock()
				defer mu.Unlock()
				if n := find(nodes, e); n != nil {
					last = n
					return n
				}
				return nil
			}
			h.Missed = func(*Node) *Node { mu.Lock(); defer mu.Unlock(); return last }
		}},
		{"applies inner limits to shorter descriptors", "matching/shorter-descriptor-has-no-limit", changed(func(n *Node) {
			if n.RateLimit == nil && len(n.Descriptors) > 0 {
				n.RateLimit = n.Descriptors[len(n.Descriptors)-1].RateLimit
			}
		})},
		{"searches all rules of a level", "matching/no-backtracking", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				n := find(nodes, e)
				if n == nil || n.Value == nil {
					return n
				}
				other := *n
				for _, sibling := range nodes {
					if sibling.Key == n.Key && sibling.Value == nil {
						other.Descriptors = append(slices.Clone(n.Descriptors), sibling.Descriptors...)
					}
				}
				return &other
			}
		}},
		{"skips levels", "matching/a-missing-level-has-no-limit", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				if n := find(nodes, e); n != nil {
					return n
				}
				for _, n := range nodes {
					if m := find(n.Descriptors, e); m != nil {
						return m
					}
				}
				return nil
			}
		}},
		{"finds rules below the second entry", "matching/unknown-first-entry", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				if n := find(nodes, e); n != nil {
					return n
				}
				if (e.Key == "other" || e.Key == "tenant") && len(nodes) == 1 {
					return nodes[0]
				}
				if e.Key == "run" && len(nodes) > 10 {
					return find(nodes, Entry{"tenant", "acme"})
				}
				return nil
			}
		}},
		{"stops at four levels", "matching/four-levels", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				if e.Key == "l4" {
					return nil
				}
				return find(nodes, e)
			}
		}},
		{"ignores nested rules", "matching/nested-needs-all-entries", changed(func(n *Node) {
			if n.Key != "run" {
				n.Descriptors = nil
			}
		})},
		{"ignores rules below wildcards", "matching/below-a-wildcard", changed(func(n *Node) {
			if n.wildcard() {
				n.Descriptors = nil
			}
		})},
		{"does not match wildcards", "matching/wildcard-matches-a-prefix", without((*Node).wildcard)},
		{"prefers wildcards to values", "matching/exact-beats-wildcard", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				for _, n := range nodes {
					if n.Key == e.Key && n.wildcard() && matches(*n.Value, e.Value) {
						return n
					}
				}
				return find(nodes, e)
			}
		}},
		{"takes the last wildcard", "matching/first-wildcard-wins", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				nodes = slices.Clone(nodes)
				slices.Reverse(nodes)
				return find(nodes, e)
			}
		}},
		{"takes * as one or more", "matching/wildcard-matches-nothing-more", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				return find(slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool {
					return n.wildcard() && len(strings.ReplaceAll(*n.Value, "*", "")) == len(e.Value)
				}), e)
			}
		}},
		{"takes wildcards as contained texts", "matching/wildcard-does-not-match-suffix", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				for _, n := range nodes {
					if n.Key == e.Key && n.wildcard() {
						if i := slices.IndexFunc(strings.Split(*n.Value, "*"), func(part string) bool { return !strings.Contains(e.Value, part) }); i < 0 {
							return n
						}
					}
				}
				return find(nodes, e)
			}
		}},
		{"takes wildcards as any text", "matching/wildcard-does-not-match-others", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				if n := find(nodes, e); n != nil {
					return n
				}
				for _, n := range nodes {
					if n.Key == e.Key && n.wildcard() {
						return n
					}
				}
				return nil
			}
		}},
		{"reads a star at the end alone", "matching/wildcard-middle", without(func(n *Node) bool {
			return n.wildcard() && (strings.Count(*n.Value, "*") > 1 || !strings.HasSuffix(*n.Value, "*"))
		})},
		{"reads . and ? as any character", "matching/wildcard-does-not-match-dot", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				if n := find(nodes, e); n != nil || (e.Key != "dot" && e.Key != "question") {
					return n
				}
				return find(nodes, Entry{e.Key, strings.Replace(e.Value, "b", map[string]string{"dot": ".", "question": "?"}[e.Key], 1)})
			}
		}},
		{"shares all wildcards", "matching/wildcard-counts-each-value", changed(func(n *Node) { n.Share = n.Share || n.wildcard() })},
		{"shares no wildcards", "matching/share-threshold-shares", changed(func(n *Node) { n.Share = false })},
		{"shares over outer values", "matching/share-threshold-by-outer-value", func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				if n := len(path); n > 1 && strings.Contains(path[n-1].Value, "*") {
					return key(domain, path[n-1:])
				}
				return key(domain, path)
			}
		}},
		{"forgets shadow", "modes/shadow-is-ok-when-over", changed(func(n *Node) { n.Shadow = false })},
		{"shows shadow as over", "modes/shadow-status", func(h *Hooks) { h.Shadow = false }},
		{"shadows everything", "modes/shadow-beside-a-real-limit", changed(func(n *Node) { n.Shadow = true })},
		{"does not count shadows", "modes/shadow-counts", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				return slices.DeleteFunc(replace(bills, found), func(b *bill) bool { return b.shadow })
			}
		}},
		{"inherits shadow", "modes/shadow-of-an-outer-rule", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				n := find(nodes, e)
				if n == nil || !n.Shadow {
					return n
				}
				other := *n
				other.Descriptors = nil
				for _, inner := range n.Descriptors {
					shadowed := *inner
					shadowed.Shadow = true
					other.Descriptors = append(other.Descriptors, &shadowed)
				}
				return &other
			}
		}},
		{"a shadow that is over denies", "modes/real-limit-beside-a-shadow-over", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool { return slices.ContainsFunc(bills, func(b *bill) bool { return b.over }) }
		}},
		{"forgets quota mode", "modes/one-of-two-quotas-spent", changed(func(n *Node) { n.Quota = false })},
		{"quotas never deny", "modes/all-quotas-spent", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				return slices.ContainsFunc(bills, func(b *bill) bool { return b.over && !b.shadow && !b.quota })
			}
		}},
		{"quotas with room save hard limits", "modes/hard-limit-beside-a-quota", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				return !slices.ContainsFunc(bills, func(b *bill) bool { return b.quota && !b.over }) && verdict(bills)
			}
		}},
		{"limits with room save quotas", "modes/spent-quota-beside-a-hard-limit", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				return slices.ContainsFunc(bills, func(b *bill) bool { return b.over && !b.shadow }) &&
					(verdict(bills) && !slices.ContainsFunc(bills, func(b *bill) bool { return !b.over && !b.quota }))
			}
		}},
		{"shows spent quotas as OK", "modes/spent-quota-status", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				if a.GetOverallCode() == ok {
					for _, s := range a.GetStatuses() {
						s.Code = ok
					}
				}
				return a
			}
		}},
		{"a descriptor without a rule saves quotas", "modes/quota-beside-no-limit", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				if slices.ContainsFunc(a.GetStatuses(), func(s *descriptorStatus) bool { return s.GetCurrentLimit() == nil }) {
					a.OverallCode = ok
				}
				return a
			}
		}},
		{"quotas ignore shadow", "modes/quota-in-shadow-saves-others", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				for _, b := range bills {
					b.shadow = b.shadow && !b.quota
				}
				return verdict(bills)
			}
		}},
		{"ignores replaces", "modes/replaces-removes", func(h *Hooks) {
			h.Replace = func(bills []*bill, _ []*Node) []*bill { return bills }
		}},
		{"replaces everything else", "modes/replaces-only-by-name", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				if len(replace(slices.Clone(bills), found)) == len(bills) && !replacing(found) {
					return bills
				}
				return slices.DeleteFunc(bills, func(b *bill) bool { return len(found[b.descriptor].RateLimit.ReplacesList) == 0 })
			}
		}},
		{"replaces only later descriptors", "modes/replaced-status", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				if replacing(found[max(0, len(found)-1):]) {
					return bills
				}
				return replace(bills, found)
			}
		}},
		{"replaces only earlier descriptors", "modes/replaces-in-any-order", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				if replacing(found[:min(1, len(found))]) {
					return bills
				}
				return replace(bills, found)
			}
		}},
		{"replaces the first name alone", "modes/replaces-two", changed(func(n *Node) {
			if n.RateLimit != nil && len(n.RateLimit.ReplacesList) > 1 {
				l := *n.RateLimit
				l.ReplacesList = l.ReplacesList[:1]
				n.RateLimit = &l
			}
		})},
		{"charges replaced limits", "modes/replaced-limit-is-not-charged", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				kept := replace(slices.Clone(bills), found)
				for _, b := range bills {
					if !slices.Contains(kept, b) {
						b.shadow = true
					}
				}
				return bills
			}
		}},
		{"unlimited rules do not replace", "modes/unlimited-replaces", changed(func(n *Node) {
			if n.RateLimit != nil && n.RateLimit.Unlimited {
				n.RateLimit = &Limit{Unlimited: true}
			}
		})},
		{"replaces for good", "modes/replaces-ends-with-the-request", func(h *Hooks) {
			gone := make(map[string]bool)
			var mu sync.Mutex
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				mu.Lock()
				defer mu.Unlock()
				kept := replace(slices.Clone(bills), found)
				for _, b := range bills {
					if !slices.Contains(kept, b) {
						gone[b.key] = true
					}
				}
				return slices.DeleteFunc(kept, func(b *bill) bool { return gone[b.key] })
			}
		}},
		{"unlimited rules deny", "modes/unlimited-never-denies", changed(func(n *Node) {
			if n.RateLimit != nil && n.RateLimit.Unlimited {
				n.RateLimit = &Limit{Unit: "hour", Requests: 3}
			}
		})},
		{"unlimited rules have 0 remaining", "modes/unlimited-status", func(h *Hooks) { h.Unlimited = 0 }},
		{"unlimited rules free the request", "modes/unlimited-beside-a-limit", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				if slices.ContainsFunc(found, func(n *Node) bool { return n != nil && n.RateLimit != nil && n.RateLimit.Unlimited }) {
					return nil
				}
				return replace(bills, found)
			}
		}},
		{"ignores overrides", "overrides/override-denies", func(h *Hooks) {
			overridden(h, func(b *bill, n *Node) { *b = b.of(n.RateLimit) })
		}},
		{"overrides only lower a limit", "overrides/override-admits", func(h *Hooks) {
			overridden(h, func(b *bill, n *Node) { b.requests = min(b.requests, uint64(n.RateLimit.Requests)) })
		}},
		{"overrides keep shadow", "overrides/override-loses-shadow", func(h *Hooks) {
			overridden(h, func(b *bill, n *Node) { b.shadow = n.Shadow })
		}},
		{"overrides need a rule", "overrides/override-without-a-rule", func(h *Hooks) {
			h.Override = func(b *bill, node *Node) {
				if node == nil {
					b.shadow = true
				}
			}
		}},
		{"overrides take the unit of the rule", "collisions/override-units-are-apart", func(h *Hooks) {
			overridden(h, func(b *bill, n *Node) { b.unit = n.RateLimit.Unit })
		}},
		{"overrides are always of an hour", "overrides/override-of-a-day", func(h *Hooks) {
			h.Override = func(b *bill, _ *Node) { b.unit = "hour" }
		}},
		{"overrides count apart by their limit", "overrides/two-overrides-of-one-unit", func(h *Hooks) {
			h.Override = func(b *bill, _ *Node) { b.algorithm = fmt.Sprint("override ", b.requests) }
		}},
		{"overrides of 0 are no overrides", "overrides/override-of-zero", func(h *Hooks) {
			h.Override = func(b *bill, _ *Node) {
				if b.requests == 0 {
					b.requests = 10
				}
			}
		}},
		{"overrides have signed numbers", "overrides/largest-override", func(h *Hooks) {
			h.Override = func(b *bill, _ *Node) { b.requests = uint64(max(0, int32(b.requests))) }
		}},
		{"ignores default limits", "weir/default-limit", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				return slices.DeleteFunc(replace(bills, found), func(b *bill) bool { return found[b.descriptor] == nil && b.requests == 2 })
			}
		}},
		{"takes the first of several limits", "weir/several-limits-the-longer-one", changed(func(n *Node) {
			n.RateLimits = n.RateLimits[:min(1, len(n.RateLimits))]
		})},
		{"takes the last of several limits", "weir/several-limits-all-admit", changed(func(n *Node) {
			n.RateLimits = n.RateLimits[max(0, len(n.RateLimits)-1):]
		})},
		{"ignores algorithms", "weir/log-slides", changed(func(n *Node) {
			if n.RateLimit != nil && n.RateLimit.Algorithm != "" {
				n.RateLimit = &Limit{Unit: n.RateLimit.Unit, Requests: n.RateLimit.Requests}
			}
		})},
		{"ignores bursts", "weir/bucket-holds-its-burst", changed(func(n *Node) {
			if n.RateLimit != nil && n.RateLimit.Burst > 0 {
				l := *n.RateLimit
				l.Burst = 0
				n.RateLimit = &l
			}
		})},
		{"charges denied requests everywhere", "weir/uncounted-denials", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				for _, b := range bills {
					b.counted = true
				}
				return verdict(bills)
			}
		}},
		{"charges the part that fits", "denials/uncounted-partly", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				for _, b := range bills {
					b.counted = true
				}
				return replace(bills, found)
			}
		}},
	}
}

func replacing(found []*Node) bool {
	return slices.ContainsFunc(found, func(n *Node) bool { return n != nil && n.RateLimit != nil && len(n.RateLimit.ReplacesList) > 0 })
}

// overridden changes the bill of an override whose descriptor has a rule with a limit.
func overridden(h *Hooks, change func(b *bill, n *Node)) {
	h.Override = func(b *bill, n *Node) {
		if n != nil && n.RateLimit != nil && !n.RateLimit.Unlimited {
			change(b, n)
		}
	}
}

// changed changes the rule that an entry finds.
func changed(change func(n *Node)) func(h *Hooks) {
	return func(h *Hooks) {
		h.Find = func(nodes []*Node, e Entry) *Node {
			n := find(nodes, e)
			if n == nil || n.Key == "ready" {
				return n
			}
			other := *n
			change(&other)
			return &other
		}
	}
}
