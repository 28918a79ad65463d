package model

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/conformance/internal/forms"
)

type (
	request    = ratelimitv3.RateLimitRequest
	response   = ratelimitv3.RateLimitResponse
	descriptor = commonv3.RateLimitDescriptor
)

// A mutant is a service with one fault. A new one is one element of mutants: its name, a case that
// finds it, and the hooks that it replaces. See Hooks.
type mutant struct {
	name  string
	found string // a case that must fail
	hooks func(h *Hooks)
}

func mutants() []mutant {
	return slices.Concat(hitMutants(), windowMutants(), keyMutants(), ruleMutants(), answerMutants(), requestMutants(), processMutants())
}

func hitMutants() []mutant {
	return []mutant{
		{"admits one too many", "basics/next-hit-is-over", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return used+hits > limit+1 }
		}},
		{"admits one too few", "basics/limit-is-inclusive", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return used+hits >= limit && hits > 0 }
		}},
		{"admits while any hit is left", "hits/partly-over-is-over", func(h *Hooks) {
			h.Over = func(used, _, limit uint64) bool { return used >= limit }
		}},
		{"denies a probe of a full window", "hits/probe-of-a-full-window", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return used+max(1, hits) > limit }
		}},
		{"admits every probe", "hits/probe-after-a-denial", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return hits > 0 && used+hits > limit }
		}},
		{"counts with 32 bits", "hits/largest-addend", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return uint32(used)+uint32(hits) > uint32(limit) }
		}},
		{"wraps the count", "hits/wrap-to-zero", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return (used+hits)%(1<<32) > limit }
		}},
		{"compares with signed 32 bits", "basics/largest-limit", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return int32(used+hits) > int32(limit) }
		}},
		{"counts no hits", "basics/limit-of-one", func(h *Hooks) {
			h.Charge = func(uint64, bool) uint64 { return 0 }
		}},
		{"counts one hit whatever it is", "hits/request-addend", func(h *Hooks) {
			h.Charge = func(uint64, bool) uint64 { return 1 }
		}},
		{"does not count denied hits", "denials/counted-partly", func(h *Hooks) {
			h.Charge = func(hits uint64, over bool) uint64 {
				if over {
					return 0
				}
				return hits
			}
		}},
		{"ignores hits_addend", "hits/request-addend-verdict", func(h *Hooks) {
			h.Hits = func(_ *request, d *descriptor) (uint64, bool) { return hitsOf(new(request), d) }
		}},
		{"ignores hits_addend of descriptors", "hits/descriptor-addend", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				return uint64(max(1, r.GetHitsAddend())), d.GetIsNegativeHits()
			}
		}},
		{"prefers hits_addend of the request", "hits/descriptor-addend-wins", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				if r.GetHitsAddend() > 0 {
					return uint64(r.GetHitsAddend()), d.GetIsNegativeHits()
				}
				return hitsOf(r, d)
			}
		}},
		{"adds both hits_addend", "hits/descriptor-addend-of-one-wins", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				hits, refund := hitsOf(r, d)
				if d.GetHitsAddend() != nil {
					hits += uint64(r.GetHitsAddend())
				}
				return hits, refund
			}
		}},
		{"takes the first descriptor's hits_addend for all", "hits/each-descriptor-its-own", func(h *Hooks) {
			h.Hits = func(r *request, _ *descriptor) (uint64, bool) { return hitsOf(r, r.GetDescriptors()[0]) }
		}},
		{"takes hits_addend 0 as 1", "hits/zero-of-a-descriptor-is-zero", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				hits, refund := hitsOf(r, d)
				return max(1, hits), refund
			}
		}},
		{"doubles hits", "basics/first-hit-is-ok", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool {
				return used+2*hits > limit || limit == 10 && used == 0 && hits == 1
			}
			h.Charge = func(hits uint64, _ bool) uint64 { return 2 * hits }
		}},
		{"takes refunds as hits", "refunds/gives-hits-back", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				hits, _ := hitsOf(r, d)
				return hits, false
			}
		}},
		{"ignores refunds", "refunds/admits-again", func(h *Hooks) {
			h.Refund = func(uint64, uint64) uint64 { return 0 }
		}},
		{"gives back one hit whatever it is", "refunds/of-3", func(h *Hooks) {
			h.Refund = func(_, used uint64) uint64 { return min(1, used) }
		}},
		{"gives back everything", "refunds/of-1", func(h *Hooks) {
			h.Refund = func(_, used uint64) uint64 { return used }
		}},
		{"mints hits by refunds", "refunds/of-a-fresh-key", func(h *Hooks) {
			var credit uint64
			h.Refund = func(hits, used uint64) uint64 {
				credit += hits - min(hits, used)
				return min(hits, used)
			}
			h.Over = func(used, hits, limit uint64) bool { return used+hits > limit+credit }
		}},
		{"denies refunds of more than the used hits", "refunds/is-clamped", func(h *Hooks) {
			h.Refund = func(hits, used uint64) uint64 {
				if hits > used {
					return 0
				}
				return hits
			}
		}},
		{"refuses refunds of descriptors without a rule", "refunds/of-a-key-without-a-rule", func(h *Hooks) {
			h.Check = func(r *request) error {
				for _, d := range r.GetDescriptors() {
					if d.GetIsNegativeHits() && d.GetEntries()[0].GetKey() == "free" {
						return errEmpty
					}
				}
				return checkRequest(r)
			}
		}},
		{"takes hits without a lock", "races/no-hit-is-lost", func(h *Hooks) { unlocked(h) }},
		{"counts equal descriptors once", "basics/equal-descriptors-count-twice", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				seen := make(map[string]bool)
				return slices.DeleteFunc(replace(bills, found), func(b *bill) bool {
					again := seen[b.key]
					seen[b.key] = true
					return again
				})
			}
		}},
		{"charges the first descriptor alone", "basics/one-over-denies-all", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				return slices.DeleteFunc(replace(bills, found), func(b *bill) bool { return b.descriptor > 0 })
			}
		}},
		{"charges the last descriptor alone", "basics/one-over-first-denies-all", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				return slices.DeleteFunc(replace(bills, found), func(b *bill) bool { return b.descriptor < len(found)-1 })
			}
		}},
	}
}

// unlocked lets another request in between a look at the count and its change.
func unlocked(h *Hooks) {
	lock := h.Lock
	h.Over = func(used, hits, limit uint64) bool {
		lock.Unlock()
		runtime.Gosched()
		time.Sleep(time.Microsecond)
		lock.Lock()
		return used+hits > limit
	}
	var mu sync.Mutex
	lost := 0
	h.Charge = func(hits uint64, _ bool) uint64 {
		mu.Lock()
		defer mu.Unlock()
		if lost++; lost%5 == 0 {
			return 0
		}
		return hits
	}
}

func windowMutants() []mutant {
	fixed := func(number int64, left time.Duration) func(time.Time, int64) (int64, time.Duration) {
		return func(time.Time, int64) (int64, time.Duration) { return number, left }
	}
	return []mutant{
		{"never resets", "windows/a-second-ends", func(h *Hooks) { h.Window = fixed(1, time.Second) }},
		{"resets all counts each second", "windows/longer-window-stays", func(h *Hooks) {
			h.Window = func(now time.Time, seconds int64) (int64, time.Duration) {
				_, left := window(now, seconds)
				return now.Unix(), left
			}
		}},
		{"resets within a second", "windows/a-window-stays-within-its-second", func(h *Hooks) {
			h.Window = func(now time.Time, seconds int64) (int64, time.Duration) {
				_, left := window(now, seconds)
				return now.UnixMilli() / (seconds * 300), left
			}
		}},
		{"begins a window with the first hit", "windows/window-of-the-clock", func(h *Hooks) {
			begin := time.Now()
			h.Window = func(now time.Time, seconds int64) (int64, time.Duration) {
				return window(now.Add(-begin.Sub(begin.Truncate(time.Second))-500*time.Millisecond), seconds)
			}
		}},
		{"carries half of a count over", "windows/a-new-window-is-whole", func(h *Hooks) {
			h.Carry = func(count uint64) uint64 { return count / 2 }
		}},
		{"carries denied hits over", "windows/denials-do-not-reach-the-next-window", func(h *Hooks) {
			h.Carry = func(count uint64) uint64 { return count - min(count, 5) }
		}},
		{"carries unused hits over", "windows/unused-hits-do-not-carry-over", func(h *Hooks) {
			h.Carry = func(count uint64) uint64 { return count - 5 }
			h.Over = func(used, hits, limit uint64) bool { return int64(used+hits) > int64(limit) }
			h.Remaining = func(used, limit uint64) uint64 { return uint64(max(0, int64(limit)-max(0, int64(used)))) }
		}},
		{"counts one hit of the window before", "windows/a-new-window-shows-its-rest", func(h *Hooks) {
			h.Carry = func(count uint64) uint64 { return min(1, count) }
		}},
		{"takes a probe into the next window", "windows/a-probe-does-not-begin-a-count", func(h *Hooks) {
			h.Carry = func(count uint64) uint64 {
				if count == 0 {
					return 1
				}
				return 0
			}
		}},
		{"says reset one too late", "windows/unit-hour-reset", func(h *Hooks) {
			h.Reset = func(left time.Duration) int64 { return int64(left/time.Second) + 2 }
		}},
		{"rounds resets down", "windows/reset-is-at-least-a-second", func(h *Hooks) {
			h.Reset = func(left time.Duration) int64 { return int64(left / time.Second) }
		}},
		{"says the whole unit as reset", "windows/reset-gets-less", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				for _, s := range a.GetStatuses() {
					if l := s.GetCurrentLimit(); l != nil {
						seconds, _ := forms.Seconds(l.GetUnit().String())
						s.DurationUntilReset = durationpb.New(time.Duration(seconds) * time.Second)
					}
				}
				return a
			}
		}},
		{"says no reset of a denial", "windows/reset-of-a-denial", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				for _, s := range a.GetStatuses() {
					if s.GetCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
						s.DurationUntilReset = nil
					}
				}
				return a
			}
		}},
		{"says the first reset for all", "windows/resets-of-each-descriptor", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				for _, s := range a.GetStatuses() {
					s.DurationUntilReset = a.GetStatuses()[0].GetDurationUntilReset()
				}
				return a
			}
		}},
		{"says no reset where hits are left", "windows/reset-of-a-probe", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				for _, s := range a.GetStatuses() {
					if s.GetLimitRemaining() > 0 {
						s.DurationUntilReset = nil
					}
				}
				return a
			}
		}},
		{"moves the end of a window by a refund", "refunds/does-not-move-the-reset", func(h *Hooks) {
			moved := false
			h.Refund = func(hits, used uint64) uint64 {
				moved = true
				return min(hits, used)
			}
			h.Reset = func(left time.Duration) int64 {
				if moved {
					return int64(left/time.Second) + 5
				}
				return int64((left + time.Second - 1) / time.Second)
			}
		}},
		{"knows no week", "windows/unit-week-reset", func(h *Hooks) { seconds(h, "week", 24*60*60) }},
		{"counts a month of 31 days", "windows/unit-month-reset", func(h *Hooks) { seconds(h, "month", 31*24*60*60) }},
		{"counts a year of 360 days", "windows/unit-year-reset", func(h *Hooks) { seconds(h, "year", 360*24*60*60) }},
		{"counts a day of 12 hours", "windows/unit-day-reset", func(h *Hooks) { seconds(h, "day", 12*60*60) }},
		{"counts a minute of a second", "windows/minute-does-not-end-with-a-second", func(h *Hooks) { seconds(h, "minute", 1) }},
		{"counts a second of two", "windows/three-windows", func(h *Hooks) { seconds(h, "second", 2) }},
		{"says every unit is a second", "windows/unit-hour-is-shown", func(h *Hooks) {
			h.Unit = func(string) ratelimitv3.RateLimitResponse_RateLimit_Unit {
				return ratelimitv3.RateLimitResponse_RateLimit_SECOND
			}
		}},
		{"says a unit of an hour as a day", "windows/units-in-capital-letters", func(h *Hooks) {
			unit := h.Unit
			h.Unit = func(name string) ratelimitv3.RateLimitResponse_RateLimit_Unit {
				return (unit(name) + 1) % 8
			}
		}},
		{"refills a bucket past its burst", "weir/bucket-refills-to-its-burst", func(h *Hooks) {
			h.Full = func(tokens, _ float64) float64 { return tokens }
		}},
		{"never refills a bucket", "weir/bucket-refills", func(h *Hooks) {
			now := time.Now()
			h.Now = func() time.Time { return now }
		}},
	}
}

// seconds changes the length of one unit.
func seconds(h *Hooks, unit string, length int64) {
	correct := h.Seconds
	h.Seconds = func(name string) int64 {
		if strings.EqualFold(name, unit) {
			return length
		}
		return correct(name)
	}
}

func keyMutants() []mutant {
	joined := func(separator string) func(h *Hooks) {
		return func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				texts := []string{domain}
				for _, e := range path {
					texts = append(texts, e.Key, e.Value)
				}
				return strings.Join(texts, separator)
			}
		}
	}
	// normal gives values a form in which some of them are equal.
	normal := func(change func(string) string) func(h *Hooks) {
		return func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				path = slices.Clone(path)
				for i := range path {
					path[i].Value = change(path[i].Value)
				}
				return key(domain, path)
			}
		}
	}
	all := []mutant{
		{"joins keys by _", "collisions/value-that-looks-like-two-entries", joined("_")},
		{"joins keys by nothing", "collisions/key-with-separator", joined("")},
		{"ignores the domain", "basics/domains-are-apart", func(h *Hooks) {
			h.Key = func(_ string, path []Entry) string { return key("", path) }
		}},
		{"ignores keys", "basics/keys-are-apart", func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				var values []Entry
				for _, e := range path {
					values = append(values, Entry{"", e.Value})
				}
				return key(domain, values)
			}
		}},
		{"ignores the last value", "basics/values-are-apart", func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				path = slices.Clone(path)
				if n := len(path); n > 0 {
					path[n-1].Value = ""
				}
				return key(domain, path)
			}
		}},
		{"keeps the last entry alone", "matching/nested-counts-by-outer-value", func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string { return key(domain, path[max(0, len(path)-1):]) }
		}},
		{"keeps the first entry alone", "matching/nested-counts-by-inner-value", func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string { return key(domain, path[:min(1, len(path))]) }
		}},
		{"ignores the unit in keys", "collisions/override-units-are-apart", func(h *Hooks) {
			h.KeyOfLimit = func(string, int64) string { return "" }
		}},
		{"puts the hits' number into keys", "basics/limit-of-one", func(h *Hooks) {
			n := 0
			h.KeyOfLimit = func(string, int64) string { n++; return fmt.Sprint(n) }
		}},
		{"ignores case in keys", "collisions/upper-and-lower-case", normal(strings.ToLower)},
		{"cuts values after 256 bytes", "collisions/a-long-common-prefix", normal(func(v string) string { return v[:min(256, len(v))] })},
		{"trims values", "collisions/values-trailing-space", normal(strings.TrimSpace)},
		{"drops zero bytes", "collisions/values-trailing-zero", normal(func(v string) string { return strings.ReplaceAll(v, "\x00", "") })},
		{"drops leading zeros", "collisions/values-leading-zero", normal(func(v string) string { return strings.ReplaceAll(v, "-01", "-1") })},
		{"drops the last separator", "collisions/values-trailing-underscore", normal(func(v string) string { return strings.TrimSuffix(v, "_") })},
		{"decodes + in values", "collisions/values-plus", normal(func(v string) string { return strings.ReplaceAll(v, "+", " ") })},
		{"decodes percents in values", "collisions/values-percent-text", normal(func(v string) string { return strings.ReplaceAll(v, "%20", " ") })},
		{"decodes slashes in values", "collisions/values-slash-escaped", normal(func(v string) string { return strings.ReplaceAll(v, "%2F", "/") })},
		{"makes one newline of two", "collisions/values-crlf", normal(func(v string) string { return strings.ReplaceAll(v, "\r\n", "\n") })},
		{"escapes with a backslash", "collisions/values-escape-of-separator", normal(func(v string) string { return strings.ReplaceAll(v, `\_`, "_") })},
		{"composes letters", "collisions/unicode-forms", normal(func(v string) string { return strings.ReplaceAll(v, "e\u0301", "é") })},
		{"matches by key and value joined", "collisions/key-and-value-do-not-join", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				for _, n := range nodes {
					if n.Value == nil && n.Key == e.Key+"_"+e.Value {
						return n
					}
				}
				return find(nodes, e)
			}
		}},
		{"counts a fixed value under its key", "collisions/fixed-value-and-key-alone", func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				path = slices.Clone(path)
				for i := range path {
					path[i].Value = strings.TrimPrefix(path[i].Value, "fixed")
				}
				return key(domain, path)
			}
		}},
	}
	for name, c := range map[string]string{
		"bar": "|", "newline": "\n", "colon": ":", "slash": "/", "dot": ".", "comma": ",", "equals": "=", "space": " ", "tab": "\t", "zero": "\x00",
		"quote": `"`, "backslash": `\`, "brace": "{", "star": "*", "hash": "#", "percent": "%", "semicolon": ";", "euro": "€", "emoji": "🌊",
		"escape": "\x1b", "separator": "\x1f", "underscore": "_",
	} {
		// Values are joined without their keys.
		all = append(all, mutant{"joins values by " + name, "collisions/separator-" + name, func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				var values []string
				for _, e := range path {
					values = append(values, e.Value)
				}
				first := ""
				if len(path) > 0 {
					first = path[0].Key
				}
				return domain + "/" + first + "/" + strings.Join(values, c)
			}
		}})
	}
	return all
}

func ruleMutants() []mutant {
	// looked changes the nodes or the entry of a look-up.
	looked := func(change func(nodes []*Node, e Entry) ([]*Node, Entry)) func(h *Hooks) {
		return func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node { return find(change(nodes, e)) }
		}
	}
	without := func(drop func(n *Node) bool) func(h *Hooks) {
		return looked(func(nodes []*Node, e Entry) ([]*Node, Entry) { return slices.DeleteFunc(slices.Clone(nodes), drop), e })
	}
	changed := func(change func(n *Node)) func(h *Hooks) {
		return func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				n := find(nodes, e)
				if n == nil {
					return nil
				}
				other := *n
				change(&other)
				return &other
			}
		}
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
		{"takes unknown domains as another one", "basics/unknown-domain-is-ok", func(h *Hooks) {
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
		{"does not match keys alone", "matching/key-alone-limits-the-rest", without(func(n *Node) bool { return n.Value == nil && n.Key != "run" })},
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
		{"takes an empty value as no value", "matching/empty-value-matches-exactly", without(func(n *Node) bool { return n.Value != nil && *n.Value == "" })},
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
				if a.GetOverallCode() == ratelimitv3.RateLimitResponse_OK {
					for _, s := range a.GetStatuses() {
						s.Code = ratelimitv3.RateLimitResponse_OK
					}
				}
				return a
			}
		}},
		{"a descriptor without a rule saves quotas", "modes/quota-beside-no-limit", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				if slices.ContainsFunc(a.GetStatuses(), func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) bool { return s.GetCurrentLimit() == nil }) {
					a.OverallCode = ratelimitv3.RateLimitResponse_OK
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
		{"ignores replaces", "modes/replaces-removes", func(h *Hooks) { h.Replace = func(bills []*bill, _ []*Node) []*bill { return bills } }},
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
				if len(found) > 0 && found[len(found)-1] != nil && found[len(found)-1].RateLimit != nil && len(found[len(found)-1].RateLimit.ReplacesList) > 0 {
					return bills
				}
				return replace(bills, found)
			}
		}},
		{"replaces only earlier descriptors", "modes/replaces-in-any-order", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				if len(found) > 0 && found[0] != nil && found[0].RateLimit != nil && len(found[0].RateLimit.ReplacesList) > 0 {
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
		{"ignores overrides", "overrides/override-denies", func(h *Hooks) { overridden(h, func(b *bill, n *Node) { *b = b.of(n.RateLimit) }) }},
		{"overrides only lower a limit", "overrides/override-admits", func(h *Hooks) {
			overridden(h, func(b *bill, n *Node) { b.requests = min(b.requests, uint64(n.RateLimit.Requests)) })
		}},
		{"overrides keep shadow", "overrides/override-loses-shadow", func(h *Hooks) { overridden(h, func(b *bill, n *Node) { b.shadow = n.Shadow }) }},
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
		{"overrides are always of an hour", "overrides/override-of-a-day", func(h *Hooks) { h.Override = func(b *bill, _ *Node) { b.unit = "hour" } }},
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
		{"takes the first of several limits", "weir/several-limits-the-longer-one", changed(func(n *Node) { n.RateLimits = n.RateLimits[:min(1, len(n.RateLimits))] })},
		{"takes the last of several limits", "weir/several-limits-all-admit", changed(func(n *Node) { n.RateLimits = n.RateLimits[max(0, len(n.RateLimits)-1):] })},
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

func answerMutants() []mutant {
	// said changes each status.
	said := func(change func(s *ratelimitv3.RateLimitResponse_DescriptorStatus)) func(h *Hooks) {
		return func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				for _, s := range a.GetStatuses() {
					change(s)
				}
				return a
			}
		}
	}
	return []mutant{
		{"leaves statuses out", "basics/two-descriptors-two-statuses", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response { a.Statuses = nil; return a }
		}},
		{"answers statuses in reverse", "basics/statuses-follow-the-order", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response { slices.Reverse(a.Statuses); return a }
		}},
		{"leaves statuses without a limit out", "basics/a-hole-keeps-its-place", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				a.Statuses = slices.DeleteFunc(a.Statuses, func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) bool { return s.GetCurrentLimit() == nil })
				return a
			}
		}},
		{"says the verdict in each status", "basics/codes-of-each-descriptor", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				for _, s := range a.GetStatuses() {
					s.Code = a.GetOverallCode()
				}
				return a
			}
		}},
		{"says OK in each status", "basics/zero-status", said(func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) { s.Code = ratelimitv3.RateLimitResponse_OK })},
		{"leaves current_limit out", "basics/status-shows-the-limit", said(func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) { s.CurrentLimit = nil })},
		{"leaves current_limit of denials out", "basics/denied-status-shows-the-limit", said(func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) {
			if s.GetCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
				s.CurrentLimit = nil
			}
		})},
		{"makes a limit up", "basics/unknown-key-status", said(func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) {
			if s.GetCurrentLimit() == nil {
				s.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{Unit: ratelimitv3.RateLimitResponse_RateLimit_SECOND}
			}
		})},
		{"leaves names out", "basics/status-shows-the-name", said(func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) {
			if s.GetCurrentLimit() != nil {
				s.CurrentLimit.Name = ""
			}
		})},
		{"makes names up", "basics/status-has-no-name-without-one", said(func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) {
			if s.GetCurrentLimit() != nil && s.CurrentLimit.Name == "" {
				s.CurrentLimit.Name = "limit"
			}
		})},
		{"says the remaining hits before this one", "basics/remaining-counts-down", func(h *Hooks) {
			h.Remaining = func(used, limit uint64) uint64 { return limit - min(used-min(1, used), limit) }
		}},
		{"says the used hits as remaining", "hits/probe-shows-the-rest", func(h *Hooks) { h.Remaining = func(used, _ uint64) uint64 { return used } }},
		{"wraps remaining", "basics/remaining-of-a-denial-is-0", func(h *Hooks) { h.Remaining = func(used, limit uint64) uint64 { return limit - used } }},
		{"remembers remaining of another request", "races/remaining-is-distinct", func(h *Hooks) {
			h.Remaining = func(used, limit uint64) uint64 { return (limit - min(used, limit)) / 2 * 2 }
		}},
		{"sends no headers", "answers/headers", func(h *Hooks) { h.Headers = nil; h.Headers = noHeaders }},
		{"sends headers of the first descriptor", "answers/headers-of-the-least-remaining", func(h *Hooks) {
			correct := h.Headers
			h.Headers = func(bills []*bill) []*headerValue { return correct(bills[:min(1, len(bills))]) }
		}},
		{"sends headers of the last descriptor", "answers/headers-of-the-denying-limit", func(h *Hooks) {
			correct := h.Headers
			h.Headers = func(bills []*bill) []*headerValue { return correct(bills[max(0, len(bills)-1):]) }
		}},
		{"sends no metadata", "answers/metadata-of-the-request", func(h *Hooks) { h.Metadata = noMetadata }},
		{"sends metadata of denied rules", "answers/metadata-of-a-denied-rule", func(h *Hooks) {
			correct := h.Metadata
			h.Metadata = func(r *request, statuses []*ratelimitv3.RateLimitResponse_DescriptorStatus, found []*Node) *metadataStruct {
				return correct(r, make([]*ratelimitv3.RateLimitResponse_DescriptorStatus, 0, 1), found[:0])
			}
			h.Metadata = func(r *request, statuses []*ratelimitv3.RateLimitResponse_DescriptorStatus, found []*Node) *metadataStruct {
				var passed []*ratelimitv3.RateLimitResponse_DescriptorStatus
				for _, s := range statuses {
					c, _ := proto.Clone(s).(*ratelimitv3.RateLimitResponse_DescriptorStatus)
					c.Code = ratelimitv3.RateLimitResponse_OK
					passed = append(passed, c)
				}
				return correct(r, passed, found)
			}
		}},
		{"sends the last rule's metadata", "answers/metadata-is-merged", func(h *Hooks) {
			correct := h.Metadata
			h.Metadata = func(r *request, statuses []*ratelimitv3.RateLimitResponse_DescriptorStatus, found []*Node) *metadataStruct {
				statuses, found = slices.Clone(statuses), slices.Clone(found)
				slices.Reverse(statuses)
				slices.Reverse(found)
				return correct(r, statuses, found)
			}
		}},
		{"loses metadata of detailed metrics", "answers/metadata-beside-detailed-metric", func(h *Hooks) {
			correct := h.Metadata
			h.Metadata = func(r *request, statuses []*ratelimitv3.RateLimitResponse_DescriptorStatus, found []*Node) *metadataStruct {
				found = slices.Clone(found)
				for i, n := range found {
					if n != nil && (n.DetailedMetric || n.ValueToMetric) {
						found[i] = nil
					}
				}
				return correct(r, statuses, found)
			}
		}},
		{"says an empty domain's answer for all that is unknown", "basics/unknown-domain-has-a-bare-status", func(h *Hooks) {
			h.Finish = func(r *request, a *response) *response {
				if strings.HasSuffix(r.GetDomain(), "unknown") {
					a.Statuses = nil
				}
				return a
			}
		}},
	}
}

// always answers each request alike. Requests that show whether rules are in force are exceptions.
func always(code ratelimitv3.RateLimitResponse_Code) func(h *Hooks) {
	return func(h *Hooks) {
		h.Check = func(*request) error { return nil }
		h.OverrideUnit = func(int32) (string, error) { return "hour", nil }
		h.Hits = func(*request, *descriptor) (uint64, bool) { return 1, false }
		h.Finish = func(r *request, a *response) *response {
			if r.GetDomain() == forms.ReadyDomain {
				return a
			}
			return &response{OverallCode: code}
		}
	}
}

func requestMutants() []mutant {
	failing := func(fails func(r *request) bool) func(h *Hooks) {
		return func(h *Hooks) {
			h.Check = func(r *request) error {
				if fails(r) {
					// A panic of a handler ends a program of grpc-go.
					os.Exit(3)
				}
				return checkRequest(r)
			}
		}
	}
	bytes := func(most int) func(r *request) bool { return func(r *request) bool { return proto.Size(r) > most } }
	return []mutant{
		{"takes empty requests", "hostile/empty-domain", func(h *Hooks) { h.Check = func(*request) error { return nil } }},
		{"answers bad requests with UNKNOWN", "hostile/empty-domain-code", func(h *Hooks) {
			h.Check = func(r *request) error {
				if checkRequest(r) != nil {
					return errEmpty
				}
				return nil
			}
		}},
		{"ends at a bad override", "hostile/override-of-unknown-unit", func(h *Hooks) {
			h.OverrideUnit = func(unit int32) (string, error) {
				if unit < 1 || unit > 7 {
					os.Exit(3)
				}
				return overrideUnit(unit)
			}
		}},
		{"ends at an empty key", "hostile/empty-key", failing(func(r *request) bool {
			return slices.ContainsFunc(r.GetDescriptors(), func(d *descriptor) bool { return len(d.GetEntries()) > 0 && d.GetEntries()[0].GetKey() == "" })
		})},
		{"ends at 40000 bytes", "hostile/value-of-50000-bytes", failing(bytes(40000))},
		{"ends at 3000000 bytes", "hostile/value-of-3000000-bytes", failing(bytes(2900000))},
		{"ends at 20000 bytes of a key", "hostile/key-of-20000-bytes", failing(func(r *request) bool {
			return slices.ContainsFunc(r.GetDescriptors(), func(d *descriptor) bool {
				return len(d.GetEntries()) > 0 && len(d.GetEntries()[0].GetKey()) > 10000
			})
		})},
		{"ends at a long domain", "hostile/domain-of-20000-bytes", failing(func(r *request) bool { return len(r.GetDomain()) > 10000 })},
		{"ends at many entries", "hostile/many-entries", failing(func(r *request) bool {
			return slices.ContainsFunc(r.GetDescriptors(), func(d *descriptor) bool { return len(d.GetEntries()) > 100 })
		})},
		{"ends at many descriptors", "hostile/too-many-descriptors", failing(func(r *request) bool { return len(r.GetDescriptors()) > 10000 })},
		{"ends at 900 descriptors", "hostile/many-descriptors", failing(func(r *request) bool { return len(r.GetDescriptors()) == 900 })},
		{"ends at control characters", "hostile/newline-in-a-key", failing(func(r *request) bool {
			return slices.ContainsFunc(r.GetDescriptors(), func(d *descriptor) bool {
				return len(d.GetEntries()) > 0 && strings.Contains(d.GetEntries()[0].GetKey(), "\r")
			})
		})},
		{"ends at format verbs", "hostile/format-verbs", failing(func(r *request) bool {
			return slices.ContainsFunc(r.GetDescriptors(), func(d *descriptor) bool {
				return len(d.GetEntries()) > 0 && strings.Contains(d.GetEntries()[0].GetValue(), "%s")
			})
		})},
		{"ends at unknown fields", "hostile/unknown-fields", failing(func(r *request) bool { return len(r.ProtoReflect().GetUnknown()) > 0 })},
		{"takes messages of any size", "hostile/message-of-8-megabytes", func(h *Hooks) {
			h.MaxMessage = 1 << 30
			h.Check = func(*request) error { return nil }
		}},
		{"takes a hit count of 64 bits as one of 32", "hostile/addend-of-2-to-the-32", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				hits, refund := hitsOf(r, d)
				return uint64(uint32(hits)), refund
			}
		}},
		{"takes a hit count as signed", "hostile/addend-of-2-to-the-63", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				hits, refund := hitsOf(r, d)
				if int64(hits) < 0 {
					return -hits, true
				}
				return hits, refund
			}
		}},
		{"mints hits by the largest refund", "hostile/largest-refund", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return used+hits > limit && hits != 2 }
		}},
		{"answers slowly", "hostile/deadline-of-envoy", func(h *Hooks) {
			h.Check = func(r *request) error {
				if r.GetDomain() == "hostile" {
					time.Sleep(40 * time.Millisecond)
				}
				return checkRequest(r)
			}
		}},
		{"breaks after expired deadlines", "hostile/short-deadlines", func(h *Hooks) {
			h.Store = func(ctx context.Context) error {
				if deadline, set := ctx.Deadline(); set && time.Until(deadline) < 10*time.Millisecond {
					os.Exit(3)
				}
				return nil
			}
		}},
		{"denies under load", "races/many-keys", func(h *Hooks) {
			var busy sync.Mutex
			h.Store = func(context.Context) error {
				if !busy.TryLock() {
					return errEmpty
				}
				defer busy.Unlock()
				time.Sleep(200 * time.Microsecond)
				return nil
			}
		}},
	}
}

func processMutants() []mutant {
	return []mutant{
		{"has no health", "health/overall", func(h *Hooks) { h.Health = nil }},
		{"has health of the reference's name alone", "health/service-name", func(h *Hooks) { h.Health = []string{"", "ratelimit"} }},
		{"has health of the full name alone", "health/reference-name", func(h *Hooks) { h.Health = []string{"", "envoy.service.ratelimit.v3.RateLimitService"} }},
		{"has health of every name", "health/unknown-service", func(h *Hooks) { h.Health = append(h.Health, "no.such.Service") }},
		{"has no reflection", "health/reflection", func(h *Hooks) { h.Reflection = false }},
		{"ends at once", "drain/breaks-no-request", func(h *Hooks) { h.Terminate = func(func(), func()) int { return 0 } }},
		{"ends with an error", "drain/ends", func(h *Hooks) {
			h.Terminate = func(notServing, graceful func()) int {
				notServing()
				graceful()
				return 1
			}
		}},
		{"says nothing before it ends", "drain/tells-health", func(h *Hooks) {
			h.Terminate = func(_, graceful func()) int {
				graceful()
				return 0
			}
		}},
		{"reads rules once", "reload/adds-a-rule", func(h *Hooks) { h.NoWatch = true }},
		{"forgets counts in a reload", "reload/keeps-counts", func(h *Hooks) {
			h.Reloaded = func(s *Service) {
				s.hooks.Lock.Lock()
				defer s.hooks.Lock.Unlock()
				clear(s.states)
			}
		}},
		{"keeps old limits of known keys", "reload/raises-a-limit", func(h *Hooks) {
			limits := make(map[string]uint64)
			var mu sync.Mutex
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				mu.Lock()
				defer mu.Unlock()
				for _, b := range bills {
					if first, known := limits[b.key]; known {
						b.requests = first
					}
					limits[b.key] = b.requests
				}
				return replace(bills, found)
			}
		}},
		{"keeps removed rules", "reload/removes-a-rule", func(h *Hooks) {
			kept := make(map[string]*Node)
			var mu sync.Mutex
			h.Find = func(nodes []*Node, e Entry) *Node {
				mu.Lock()
				defer mu.Unlock()
				if n := find(nodes, e); n != nil {
					kept[e.Key+e.Value] = n
					return n
				}
				return kept[e.Key+e.Value]
			}
		}},
		{"drops rules at a bad file", "reload/broken-rules-keep-the-old-ones", func(h *Hooks) {
			h.Broken = func(map[string]*Domain) map[string]*Domain { return nil }
		}},
		{"denies all after a bad file", "reload/recovers-from-broken-rules", func(h *Hooks) {
			broken := false
			h.Broken = func(old map[string]*Domain) map[string]*Domain {
				broken = true
				return old
			}
			h.Over = func(used, hits, limit uint64) bool { return broken || used+hits > limit }
		}},
		{"waits for Redis", "outages/answers-while-redis-is-silent", func(h *Hooks) { h.Store = Ping }},
		{"waits for Redis without a deadline", "outages/no-call-outlives-its-deadline", func(h *Hooks) {
			h.Store = func(ctx context.Context) error { return Ping(context.WithoutCancel(ctx)) }
		}},
		{"ends without Redis", "outages/answers-while-redis-is-away", func(h *Hooks) {
			h.Store = func(ctx context.Context) error {
				if Ping(ctx) != nil {
					os.Exit(3)
				}
				return nil
			}
		}},
		{"admits all while Redis is away", "outages/limits-while-redis-is-away", func(h *Hooks) {
			away := false
			h.Store = func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				away = Ping(ctx) != nil
				return nil
			}
			h.Over = func(used, hits, limit uint64) bool { return !away && used+hits > limit }
		}},
		{"loses hits of an outage", "outages/a-short-pause-loses-nothing", func(h *Hooks) {
			away := false
			h.Store = func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				away = Ping(ctx) != nil
				return nil
			}
			h.Charge = func(hits uint64, _ bool) uint64 {
				if away {
					return 0
				}
				return hits
			}
		}},
	}
}

// sorted returns the names of a set.
func sorted[V any](set map[string]V) []string { return slices.Sorted(maps.Keys(set)) }
