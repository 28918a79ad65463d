package model

import (
	"context"
	"fmt"
	"hash/crc32"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirproxy/weir/conformance/internal/forms"
)

// fieldMutants have faults that services had in the field, by an author who had not read the cases.
// The comments say where a fault was seen.
func fieldMutants() []mutant {
	return slices.Concat(clockMutants(), countMutants(), hashMutants(), requestFieldMutants(), ruleFieldMutants())
}

// clockMutants have windows at other times than the Unix epoch's, or counts that outlast windows.
func clockMutants() []mutant {
	// moved changes the windows of one length by a part of it.
	moved := func(length int64, by time.Duration) func(h *Hooks) {
		return func(h *Hooks) {
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				if seconds == length {
					now = now.Add(by)
				}
				return window(key, now, seconds)
			}
		}
	}
	const day = 24 * 60 * 60
	return []mutant{
		// limitador, steward
		{"begins windows with the first hit of a key", "windows/window-of-the-clock", func(h *Hooks) {
			first := make(map[string]time.Time)
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				if _, known := first[key]; !known {
					first[key] = now
				}
				since, length := now.Sub(first[key]), time.Duration(seconds)*time.Second
				return int64(since / length), length - since%length
			}
		}},
		// A counter and its expiry, set with each hit.
		{"extends a window with each hit", "windows/a-second-ends", func(h *Hooks) {
			last, number := make(map[string]time.Time), make(map[string]int64)
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				if now.Sub(last[key]) >= time.Duration(seconds)*time.Second {
					number[key]++
				}
				last[key] = now
				_, left := window(key, now, seconds)
				return number[key], left
			}
		}},
		{"begins windows with its own start", "windows/unit-hour-reset", func(h *Hooks) {
			start := time.Now()
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				return window(key, time.Unix(0, int64(now.Sub(start))), seconds)
			}
		}},
		{"begins weeks on Monday", "windows/unit-week-reset", moved(7*day, 3*day*time.Second)},
		// gubernator: durations of the calendar are in the server's zone.
		{"begins days at another zone's midnight", "windows/unit-day-reset", moved(day, 5*time.Hour+30*time.Minute)},
		{"counts a year of 365.25 days", "windows/unit-year-reset", func(h *Hooks) { seconds(h, "year", 365*day+day/4) }},
		{"counts months of the calendar of a zone", "windows/unit-month-reset", func(h *Hooks) {
			zone := time.FixedZone("", 60*60)
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				if seconds != 30*day {
					return window(key, now, seconds)
				}
				year, month, _ := now.In(zone).Date()
				return int64(year)*12 + int64(month), time.Date(year, month+1, 1, 0, 0, 0, 0, zone).Sub(now)
			}
		}},
		// Redis TIME without its microseconds.
		{"reads whole seconds of the clock", "weir/log-slides", func(h *Hooks) {
			h.Now = func() time.Time { return time.Now().Truncate(time.Second) }
		}},
		// gubernator; a local cache of envoyproxy/ratelimit, #1077 and #1230
		{"keeps a denied key denied until its window ends", "refunds/opens-a-denied-key", func(h *Hooks) {
			denied := make(map[string]int64)
			h.Verdict = func(bills []*bill) bool {
				for _, b := range bills {
					w := 1 + time.Now().Unix()/b.seconds
					b.over = b.over || denied[b.key] == w && !b.refund
					if b.over {
						denied[b.key] = w
					}
				}
				return verdict(bills)
			}
		}},
		{"keeps a denied key denied for a whole unit", "windows/a-second-ends", func(h *Hooks) {
			until := make(map[string]time.Time)
			h.Verdict = func(bills []*bill) bool {
				now := time.Now()
				for _, b := range bills {
					if b.over && b.counted {
						until[b.key] = now.Add(time.Duration(b.seconds) * time.Second)
					}
					b.over = b.over || now.Before(until[b.key]) && !b.refund
				}
				return verdict(bills)
			}
		}},
	}
}

// countMutants lose hits, or count them where they do not belong.
func countMutants() []mutant {
	return []mutant{
		// memcached and many libraries: a count of 32 bits with a sign
		{"takes hits above 2^31 as none", "hits/largest-addend", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				hits, refund := hitsOf(r, d)
				if hits >= 1<<31 {
					return 0, refund
				}
				return hits, refund
			}
		}},
		{"takes a limit of 0 as unlimited", "basics/zero-denies-every-hit weir/ban", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				return verdict(slices.DeleteFunc(slices.Clone(bills), func(b *bill) bool {
					// The suite itself has such a limit, which shows that the rules are loaded.
					return b.requests == 0 && !strings.Contains(b.key, forms.ReadyDomain)
				}))
			}
		}},
		{"frees the other descriptors of a denied request", "denials/counted-other-descriptor", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				denied := verdict(bills)
				for _, b := range bills {
					b.counted = b.counted && (b.over || !denied)
				}
				return denied
			}
		}},
		// envoyproxy/ratelimit in "stop" mode: the look and the charge are two commands.
		{"looks first and charges later", "denials/uncounted-race weir/uncounted-race", func(h *Hooks) {
			lock := h.Lock
			h.Over = func(used, hits, limit uint64) bool {
				lock.Unlock()
				runtime.Gosched()
				time.Sleep(50 * time.Microsecond)
				lock.Lock()
				return used+hits > limit
			}
		}},
		{"spends a quota with its last hit", "modes/quota-with-room", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				for _, b := range bills {
					b.over = b.over || b.quota && b.remaining == 0
				}
				return verdict(bills)
			}
		}},
		{"counts nothing with Redis", "outages/shared-count outages/spent-stays-spent", func(h *Hooks) {
			h.Charge = func(hits uint64, _ bool) uint64 {
				if _, set := os.LookupEnv("RLS_REDIS"); set {
					return 0
				}
				return hits
			}
		}},
		// gubernator: a cache of 50 000 keys in all
		{"forgets the oldest of 10000 keys", "hostile/flood-of-keys", func(h *Hooks) {
			var order []string
			held, forgotten := make(map[string]bool), make(map[string]int64)
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				if !held[key] {
					held[key] = true
					if order = append(order, key); len(order) > 10000 {
						held[order[0]] = false
						forgotten[order[0]]++
						order = order[1:]
					}
				}
				number, left := window(key, now, seconds)
				return number + forgotten[key]<<40, left
			}
		}},
		// SO_REUSEPORT, or two replicas without a store
		{"has two workers that count apart", "basics/over-stays-over", func(h *Hooks) {
			var n atomic.Int64
			h.Key = func(domain string, path []Entry) string { return fmt.Sprint(n.Add(1)%2, key(domain, path)) }
		}},
		// steward: the first denial ends the loop over the descriptors.
		{"stops at the first denial", "denials/counted-after-a-denial", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				stopped := false
				for _, b := range bills {
					if stopped && b.charged {
						b.state.remove(b.hits)
						b.over, b.charged = false, false
					}
					stopped = stopped || b.over && !b.shadow && !b.quota
				}
				return verdict(bills)
			}
		}},
		// steward: "Rule 1's consumption is not rolled back"
		{"charges the descriptors before a denial", "denials/uncounted-other-descriptor", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				for _, b := range bills {
					if b.over {
						break
					}
					b.counted = true
				}
				return verdict(bills)
			}
		}},
		{"says the code of the last descriptor", "basics/one-over-first-denies-all", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				if len(bills) == 0 {
					return false
				}
				return verdict(bills[len(bills)-1:])
			}
		}},
		// steward: a log is cut to 10 000 hits.
		{"keeps 1000 hits of a log", "weir/log-of-3000", func(h *Hooks) {
			h.Verdict = func(bills []*bill) bool {
				for _, b := range bills {
					b.state.log = b.state.log[max(0, len(b.state.log)-1000):]
				}
				return verdict(bills)
			}
		}},
		{"takes a refund for the whole request", "refunds/beside-a-charge", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				hits, _ := hitsOf(r, d)
				return hits, slices.ContainsFunc(r.GetDescriptors(), (*descriptor).GetIsNegativeHits)
			}
		}},
		{"gives nothing back without hits_addend of the descriptor", "refunds/of-the-requests-hits", func(h *Hooks) {
			h.Hits = func(r *request, d *descriptor) (uint64, bool) {
				hits, refund := hitsOf(r, d)
				return hits, refund && d.GetHitsAddend() != nil
			}
		}},
		{"locks keys in the order of the request", "races/opposite-order", inOrder},
	}
}

// inOrder takes a lock for each descriptor of a request, and two requests can wait for each other.
func inOrder(h *Hooks) {
	var locks sync.Map
	each := func(r *request, f func(l *sync.Mutex)) {
		seen := make(map[string]bool)
		for _, d := range r.GetDescriptors() {
			k := key(r.GetDomain(), entriesOf(d))
			// A bad override ends a request without an answer, and would leave the lock.
			if seen[k] || d.GetLimit() != nil {
				continue
			}
			seen[k] = true
			l, _ := locks.LoadOrStore(k, new(sync.Mutex))
			f(l.(*sync.Mutex)) //nolint:errcheck // nothing else is stored
		}
	}
	h.Check = func(r *request) error {
		each(r, func(l *sync.Mutex) { l.Lock(); time.Sleep(100 * time.Microsecond) })
		return checkRequest(r)
	}
	h.Finish = func(r *request, a *response) *response {
		each(r, (*sync.Mutex).Unlock)
		return a
	}
}

// hashMutants have keys that are equal for different descriptors.
func hashMutants() []mutant {
	return []mutant{
		{"counts by a hash of 31 h + c", "collisions/values-with-one-hash-of-java", func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				var sum int32
				for _, c := range key(domain, path) {
					sum = 31*sum + c
				}
				return fmt.Sprint(sum)
			}
		}},
		{"counts by CRC-32", "collisions/values-with-one-crc-32", func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				return fmt.Sprint(crc32.ChecksumIEEE([]byte(key(domain, path))))
			}
		}},
		// gostats: a key is a name of a metric.
		{
			"makes names of metrics of values", "collisions/values-dot-and-underscore",
			normal(strings.NewReplacer(":", "_", "|", "_", ".", "_").Replace),
		},
		{"writes addresses in their short form", "collisions/address-forms", normal(func(v string) string {
			if a, err := netip.ParseAddr(v); err == nil {
				return a.String()
			}
			return v
		})},
		// A value that went through JSON or Lua.
		{"reads numbers in values", "collisions/large-numbers", normal(func(v string) string {
			if f, err := strconv.ParseFloat(v, 64); err == nil {
				return strconv.FormatFloat(f, 'g', -1, 64)
			}
			return v
		})},
		{"sorts the entries of a key", "collisions/entries-in-another-order", func(h *Hooks) {
			h.Key = func(domain string, path []Entry) string {
				path = slices.Clone(path)
				slices.SortFunc(path, func(a, b Entry) int { return strings.Compare(a.Key+"\x00"+a.Value, b.Key+"\x00"+b.Value) })
				return key(domain, path)
			}
		}},
		{"shares counts between patterns", "matching/share-threshold-of-two-wildcards", normal(func(v string) string {
			if strings.Contains(v, "*") {
				return "*"
			}
			return v
		})},
	}
}

// requestFieldMutants misread requests, or say something else than they decided.
func requestFieldMutants() []mutant {
	return []mutant{
		{"refuses a descriptor without entries", "basics/empty-descriptor-is-ok", func(h *Hooks) {
			h.Check = func(r *request) error {
				for _, d := range r.GetDescriptors() {
					if len(d.GetEntries()) == 0 {
						return errEmpty
					}
				}
				return checkRequest(r)
			}
		}},
		{
			"ends at bytes that are no message",
			"hostile/invalid-utf-8 hostile/truncated-message hostile/bad-wire-type hostile/varint-of-eleven-bytes",
			func(h *Hooks) {
				h.Options = append(h.Options, grpc.ForceServerCodecV2(fragileCodec{encoding.GetCodecV2("proto")}))
			},
		},
		{"ends at a compressed request", "hostile/gzip", func(h *Hooks) {
			h.Options = append(h.Options, grpc.StatsHandler(compressedHandler{}))
		}},
		{"ends at what is no HTTP/2", "hostile/http-1 hostile/garbage hostile/preface-alone", func(h *Hooks) {
			h.Listen = func(l net.Listener) net.Listener { return fragileListener{l} }
		}},
		{"judges 64 descriptors of a request", "basics/last-of-many-descriptors", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				return slices.DeleteFunc(replace(bills, found), func(b *bill) bool { return b.descriptor >= 64 })
			}
		}},
		{"takes the first descriptor's override for all", "overrides/override-of-one-descriptor", func(h *Hooks) {
			h.Check = func(r *request) error {
				if err := checkRequest(r); err != nil {
					return err
				}
				for _, d := range r.GetDescriptors() {
					d.Limit = r.GetDescriptors()[0].GetLimit()
				}
				return nil
			}
		}},
		{"an override changes the rule", "overrides/override-ends-with-the-request", func(h *Hooks) {
			overridden(h, func(b *bill, n *Node) { n.RateLimit.Requests = uint32(b.requests) })
		}},
		{"unlimited rules ignore overrides", "overrides/override-of-unlimited", func(h *Hooks) {
			h.Override = func(b *bill, n *Node) {
				if n != nil && n.RateLimit != nil && n.RateLimit.Unlimited {
					b.requests = 1<<32 - 1
				}
			}
		}},
		// limitador: UNKNOWN in place of OK
		{"says UNKNOWN where no limit is", "basics/unknown-key-status", said(func(s *descriptorStatus) {
			if s.GetCurrentLimit() == nil {
				s.Code = ratelimitv3.RateLimitResponse_UNKNOWN
			}
		})},
		{"says the whole unit as reset in headers", "answers/headers-of-the-reset", func(h *Hooks) {
			h.Headers = func(bills []*bill) []*headerValue {
				for _, b := range bills {
					b.reset, _ = forms.Seconds(b.unit)
				}
				return headers(bills)
			}
		}},
		{"merges metadata of one level", "answers/metadata-is-merged-within", func(h *Hooks) {
			correct := h.Metadata
			h.Metadata = func(r *request, statuses []*descriptorStatus, found []*Node) *metadataStruct {
				flat := make(map[string]any)
				for i, n := range slices.Backward(found) {
					if n != nil && statuses[i].GetCode() == ok {
						maps.Copy(flat, n.Metadata)
					}
				}
				s := correct(r, statuses, found)
				if m, err := structpb.NewStruct(flat); err == nil {
					s.Fields["metadata"] = structpb.NewStructValue(m)
				}
				return s
			}
		}},
	}
}

// A fragileCodec ends the process at bytes that are no message.
type fragileCodec struct{ encoding.CodecV2 }

func (c fragileCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if c.CodecV2.Unmarshal(data, v) != nil {
		os.Exit(3)
	}
	return nil
}

// A compressedHandler ends the process at a compressed request.
type compressedHandler struct{ stats.Handler }

func (compressedHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (compressedHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

func (compressedHandler) HandleConn(context.Context, stats.ConnStats) {}

func (compressedHandler) HandleRPC(_ context.Context, s stats.RPCStats) {
	if h, is := s.(*stats.InHeader); is && h.Compression != "" {
		os.Exit(3)
	}
}

// A fragileListener ends the process at a connection that does not begin as HTTP/2 does, or ends
// then.
type fragileListener struct{ net.Listener }

func (l fragileListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &fragileConn{Conn: c}, err
}

type fragileConn struct {
	net.Conn
	begin []byte
}

func (c *fragileConn) Read(p []byte) (int, error) {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	n, err := c.Conn.Read(p)
	c.begin = append(c.begin, p[:min(n, len(preface)+1-len(c.begin))]...)
	if !strings.HasPrefix(preface, string(c.begin[:min(len(c.begin), len(preface))])) || err != nil && string(c.begin) == preface {
		os.Exit(3)
	}
	return n, err
}

// ruleFieldMutants misread rules.
func ruleFieldMutants() []mutant {
	return []mutant{
		{"does not match a pattern's own text first", "matching/text-of-a-wildcard-is-an-exact-value", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				for _, n := range nodes {
					if n.Key == e.Key && n.wildcard() && *n.Value == e.Value {
						// The text is no exact value: the first wildcard that matches wins.
						return find(slices.DeleteFunc(slices.Clone(nodes), func(o *Node) bool {
							return o.Key == e.Key && !o.wildcard() && o.Value != nil
						}), Entry{e.Key, e.Value + "\x00"})
					}
				}
				return find(nodes, e)
			}
		}},
		// A prefix and a suffix, each looked at alone.
		{"lets the ends of a pattern overlap", "matching/wildcard-does-not-match-ends-that-overlap", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				if n := find(nodes, e); n != nil && n.Value != nil {
					return n
				}
				for _, n := range nodes {
					if n.Key != e.Key || !n.wildcard() {
						continue
					}
					first, last, _ := strings.Cut(*n.Value, "*")
					if strings.HasPrefix(e.Value, first) && strings.HasSuffix(e.Value, last) {
						return n
					}
				}
				return find(nodes, e)
			}
		}},
		{"finds no rule of a key for an empty value", "basics/empty-value-has-a-count", func(h *Hooks) {
			h.Find = func(nodes []*Node, e Entry) *Node {
				if n := find(nodes, e); n == nil || n.Value != nil || e.Value != "" {
					return n
				}
				return nil
			}
		}},
		{"ignores unit_multiplier", "weir/multiplier", changed(func(n *Node) {
			if n.RateLimit != nil {
				l := *n.RateLimit
				l.Multiplier = 0
				n.RateLimit = &l
			}
		})},
		{"shares the last entry alone", "matching/share-threshold-of-an-outer-entry", changed(func(n *Node) {
			n.Share = n.Share && len(n.limits()) > 0
		})},
		// One limit after the other, in place of all names first
		{"a replaced limit replaces nothing", "modes/a-replaced-limit-replaces", func(h *Hooks) {
			h.Replace = func(bills []*bill, found []*Node) []*bill {
				for i, n := range found {
					stays := slices.ContainsFunc(bills, func(b *bill) bool { return b.descriptor == i })
					if n != nil && (stays || n.RateLimit != nil && n.RateLimit.Unlimited) {
						bills = replace(bills, []*Node{n})
					}
				}
				return bills
			}
		}},
		{"a reload of one domain drops the others", "reload/leaves-other-domains", func(h *Hooks) {
			h.Reloaded = unchanged(func(s *Service, name string) { delete(s.rules, name) })
		}},
		{"a reload of one domain forgets the counts of others", "reload/keeps-counts-of-other-domains", func(h *Hooks) {
			h.Reloaded = unchanged(func(s *Service, name string) {
				s.hooks.Lock.Lock()
				defer s.hooks.Lock.Unlock()
				maps.DeleteFunc(s.states, func(k string, _ *state) bool { return strings.HasPrefix(k, key(name, nil)) })
			})
		}},
	}
}

// unchanged acts on the domains that a reload did not change.
func unchanged(act func(s *Service, name string)) func(s *Service) {
	before := make(map[string]string)
	return func(s *Service) {
		now := make(map[string]string)
		for name, d := range s.rules {
			now[name] = fmt.Sprint(texts(d.Descriptors))
		}
		// Each reload of the suite changes this domain. Rules that cannot be read are no reload.
		if before[forms.ReadyDomain] != now[forms.ReadyDomain] {
			for name, text := range now {
				if before[name] == text {
					act(s, name)
				}
			}
		}
		before = now
	}
}

// texts shows rules, without the addresses of their parts.
func texts(nodes []*Node) []string {
	var all []string
	for _, n := range nodes {
		value := ""
		if n.Value != nil {
			value = *n.Value
		}
		all = append(all, n.Key, value)
		for _, l := range n.limits() {
			all = append(all, fmt.Sprint(*l))
		}
		all = append(all, texts(n.Descriptors)...)
	}
	return all
}
