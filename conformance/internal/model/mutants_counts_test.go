package model

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/conformance/internal/forms"
)

func hitMutants() []mutant {
	return []mutant{
		{"admits one too many", "basics/next-hit-is-over", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return used+hits > limit+1 }
		}},
		{"admits one too few", "basics/next-hit-is-over", func(h *Hooks) {
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
		{"counts with 32 bits", "hits/wrap-to-zero", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return uint32(used)+uint32(hits) > uint32(limit) }
		}},
		{"wraps the count", "hits/wrap-to-zero", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return (used+hits)%(1<<32) > limit }
		}},
		{"compares with signed 32 bits", "basics/largest-limit", func(h *Hooks) {
			h.Over = func(used, hits, limit uint64) bool { return int32(used+hits) > int32(limit) }
		}},
		{"counts no hits", "basics/limit-of-one " + eachUnit("windows/unit-%s-limits"), func(h *Hooks) {
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
		{"doubles hits", "basics/remaining-counts-down", func(h *Hooks) {
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
	fixed := func(number int64, left time.Duration) func(string, time.Time, int64) (int64, time.Duration) {
		return func(string, time.Time, int64) (int64, time.Duration) { return number, left }
	}
	return []mutant{
		{"never resets", "windows/a-second-ends", func(h *Hooks) { h.Window = fixed(1, time.Second) }},
		{"resets all counts each second", "windows/longer-window-stays", func(h *Hooks) {
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				_, left := window(key, now, seconds)
				return now.Unix(), left
			}
		}},
		{"resets within a second", "windows/a-window-stays-within-its-second", func(h *Hooks) {
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				_, left := window(key, now, seconds)
				return now.UnixMilli() / (seconds * 300), left
			}
		}},
		{"begins windows 550 ms late", "windows/window-of-the-clock", func(h *Hooks) {
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				return window(key, now.Add(-550*time.Millisecond), seconds)
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
					if s.GetCode() == over {
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
		// No end of these windows is one of the correct windows too, for many years.
		{"counts a leap second in a week", "windows/unit-week-reset", func(h *Hooks) { seconds(h, "week", 7*24*60*60+1) }},
		{"counts a month of the average length", "windows/unit-month-reset", func(h *Hooks) { seconds(h, "month", 2629746) }},
		{"counts a year of 360 days", "windows/unit-year-reset", func(h *Hooks) { seconds(h, "year", 360*24*60*60) }},
		{"counts a leap second in an hour", "overrides/override-of-a-hour", func(h *Hooks) { seconds(h, "hour", 60*60+1) }},
		{"counts a leap second in a day", "windows/unit-day-reset", func(h *Hooks) { seconds(h, "day", 24*60*60+1) }},
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

// eachUnit names the cases of all units.
func eachUnit(format string) string {
	var all []string
	for _, unit := range []string{"second", "minute", "hour", "day", "week", "month", "year"} {
		all = append(all, fmt.Sprintf(format, unit))
	}
	return strings.Join(all, " ")
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
	all := []mutant{
		{"joins keys by _", "collisions/value-that-looks-like-two-entries", joined("_")},
		{"joins keys by nothing", "collisions/value-that-looks-like-two-entries-without-separator", joined("")},
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
		{"cuts values after 256 bytes", "collisions/a-long-common-prefix", normal(func(v string) string {
			return v[:min(256, len(v))]
		})},
		{"trims values", "collisions/values-trailing-space", normal(strings.TrimSpace)},
		{"drops zero bytes", "collisions/values-trailing-zero", normal(func(v string) string {
			return strings.ReplaceAll(v, "\x00", "")
		})},
		{"drops leading zeros", "collisions/values-leading-zero", normal(func(v string) string {
			return strings.ReplaceAll(v, "-01", "-1")
		})},
		{"drops the last separator", "collisions/values-trailing-underscore", normal(func(v string) string {
			return strings.TrimSuffix(v, "_")
		})},
		{"decodes + in values", "collisions/values-plus", normal(func(v string) string { return strings.ReplaceAll(v, "+", " ") })},
		{"decodes percents in values", "collisions/values-percent-text", normal(func(v string) string {
			return strings.ReplaceAll(v, "%20", " ")
		})},
		{"decodes slashes in values", "collisions/values-slash-escaped", normal(func(v string) string {
			return strings.ReplaceAll(v, "%2F", "/")
		})},
		{"makes one newline of two", "collisions/values-crlf", normal(func(v string) string {
			return strings.ReplaceAll(v, "\r\n", "\n")
		})},
		{"escapes with a backslash", "collisions/values-escape-of-separator", normal(func(v string) string {
			return strings.ReplaceAll(v, `\_`, "_")
		})},
		{"composes letters", "collisions/unicode-forms", normal(func(v string) string {
			return strings.ReplaceAll(v, "e\u0301", "é")
		})},
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

// normal gives values a form in which some of them are equal.
func normal(change func(string) string) func(h *Hooks) {
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
