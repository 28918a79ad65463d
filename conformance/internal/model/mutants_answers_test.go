package model

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/conformance/internal/forms"
)

func answerMutants() []mutant {
	return []mutant{
		{"leaves statuses out", "basics/two-descriptors-two-statuses", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response { a.Statuses = nil; return a }
		}},
		{"answers statuses in reverse", "basics/statuses-follow-the-order", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response { slices.Reverse(a.Statuses); return a }
		}},
		{"leaves statuses without a limit out", "basics/a-hole-keeps-its-place", func(h *Hooks) {
			h.Finish = func(_ *request, a *response) *response {
				a.Statuses = slices.DeleteFunc(a.Statuses, func(s *descriptorStatus) bool { return s.GetCurrentLimit() == nil })
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
		{"says OK in each status", "basics/zero-status", said(func(s *descriptorStatus) { s.Code = ok })},
		{"leaves current_limit out", "basics/status-shows-the-limit", said(func(s *descriptorStatus) { s.CurrentLimit = nil })},
		{"leaves current_limit of denials out", "basics/denied-status-shows-the-limit", said(func(s *descriptorStatus) {
			if s.GetCode() == over {
				s.CurrentLimit = nil
			}
		})},
		{"makes a limit up", "basics/unknown-key-status", said(func(s *descriptorStatus) {
			if s.GetCurrentLimit() == nil {
				s.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{Unit: ratelimitv3.RateLimitResponse_RateLimit_SECOND}
			}
		})},
		{"leaves names out", "basics/status-shows-the-name", said(func(s *descriptorStatus) {
			if s.GetCurrentLimit() != nil {
				s.CurrentLimit.Name = ""
			}
		})},
		{"makes names up", "basics/status-has-no-name-without-one", said(func(s *descriptorStatus) {
			if s.GetCurrentLimit() != nil && s.CurrentLimit.Name == "" {
				s.CurrentLimit.Name = "limit"
			}
		})},
		{"says the remaining hits before this one", "basics/remaining-counts-down", func(h *Hooks) {
			h.Remaining = func(used, limit uint64) uint64 { return limit - min(used-min(1, used), limit) }
		}},
		{"says the used hits as remaining", "hits/probe-shows-the-rest", func(h *Hooks) {
			h.Remaining = func(used, _ uint64) uint64 { return used }
		}},
		{"wraps remaining", "basics/remaining-of-a-denial-is-0", func(h *Hooks) {
			h.Remaining = func(used, limit uint64) uint64 { return limit - used }
		}},
		{"remembers remaining of another request", "races/remaining-is-distinct", func(h *Hooks) {
			h.Remaining = func(used, limit uint64) uint64 { return (limit - min(used, limit)) / 2 * 2 }
		}},
		{"sends no headers", "answers/headers", func(h *Hooks) { h.Headers = noHeaders }},
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
			h.Metadata = func(r *request, statuses []*descriptorStatus, found []*Node) *metadataStruct {
				var passed []*descriptorStatus
				for _, s := range statuses {
					c, _ := proto.Clone(s).(*descriptorStatus)
					c.Code = ok
					passed = append(passed, c)
				}
				return correct(r, passed, found)
			}
		}},
		{"sends the last rule's metadata", "answers/metadata-is-merged", func(h *Hooks) {
			correct := h.Metadata
			h.Metadata = func(r *request, statuses []*descriptorStatus, found []*Node) *metadataStruct {
				statuses, found = slices.Clone(statuses), slices.Clone(found)
				slices.Reverse(statuses)
				slices.Reverse(found)
				return correct(r, statuses, found)
			}
		}},
		{"loses metadata of detailed metrics", "answers/metadata-beside-detailed-metric", func(h *Hooks) {
			correct := h.Metadata
			h.Metadata = func(r *request, statuses []*descriptorStatus, found []*Node) *metadataStruct {
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

// always answers each request alike, except a request that shows whether rules are in force.
func always(code ratelimitv3.RateLimitResponse_Code) func(h *Hooks) {
	return func(h *Hooks) {
		h.Check = func(*request) error { return nil }
		h.OverrideUnit = func(int32) (string, error) { return "hour", nil }
		h.Hits = func(*request, *descriptor) (uint64, bool) { return 1, false }
		h.Finish = func(r *request, a *response) *response {
			if r.GetDomain() == forms.ReadyDomain {
				return a
			}
			alike := &response{OverallCode: code}
			for range r.GetDescriptors() {
				alike.Statuses = append(alike.Statuses, &descriptorStatus{Code: code})
			}
			return alike
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
		{"takes empty requests", "hostile/empty-domain hostile/no-descriptors hostile/empty-request", func(h *Hooks) {
			h.Check = func(*request) error { return nil }
		}},
		{"answers bad requests with UNKNOWN", "hostile/empty-domain-code hostile/no-descriptors-code", func(h *Hooks) {
			h.Check = func(r *request) error {
				if checkRequest(r) != nil {
					return errEmpty
				}
				return nil
			}
		}},
		{"ends at a bad override", badOverrides, func(h *Hooks) {
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
		{"takes a hit count as signed", "hostile/addend-of-2-to-the-63 hostile/largest-descriptor-addend", func(h *Hooks) {
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
					time.Sleep(400 * time.Millisecond)
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

const badOverrides = "hostile/override-of-unknown-unit hostile/override-of-no-unit hostile/override-of-a-negative-unit " +
	"hostile/override-of-unknown-unit-beside-others"

// unknown has an error of its own for methods that do not exist.
func unknown(h *Hooks) {
	h.Options = append(h.Options, grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return errEmpty }))
}

func processMutants() []mutant {
	return []mutant{
		{"answers unknown methods otherwise", "hostile/unknown-method hostile/unknown-service hostile/retired-version-2", unknown},
		{"has no health", "health/overall", func(h *Hooks) { h.Health = nil }},
		{"has health of the reference's name alone", "health/service-name", func(h *Hooks) { h.Health = []string{"", "ratelimit"} }},
		{"has health of the full name alone", "health/reference-name", func(h *Hooks) {
			h.Health = []string{"", "envoy.service.ratelimit.v3.RateLimitService"}
		}},
		{"has health of every name", "health/unknown-service", func(h *Hooks) { h.Health = append(h.Health, "no.such.Service") }},
		{"has no reflection", "health/reflection", func(h *Hooks) { h.Reflection = false }},
		{"ends at once", "drain/breaks-no-request", func(h *Hooks) {
			h.Terminate = func(func(), func()) int { return 0 }
			// So that there are always requests under way, also on a busy machine.
			h.Store = func(context.Context) error {
				time.Sleep(20 * time.Millisecond)
				return nil
			}
		}},
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
		{"keeps old limits of known keys", "reload/raises-a-limit reload/lowers-a-limit reload/lowered-limit-status", func(h *Hooks) {
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
		{"drops rules at a bad file", "reload/broken-rules-keep-the-old-ones reload/invalid-rules-keep-the-old-ones", func(h *Hooks) {
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
		{"gives up after an outage", "outages/recovers-from-silence outages/recovers", func(h *Hooks) {
			gone := false
			h.Store = func(ctx context.Context) error {
				if gone || Ping(ctx) != nil {
					gone = true
					return errEmpty
				}
				return nil
			}
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
		{"asks the first primary for ever", "failovers/answers-afterwards failovers/answers-meanwhile", func(h *Hooks) { h.Store = Ping }},
		{"begins anew with another primary", "failovers/spent-stays-spent failovers/limits-meanwhile", func(h *Hooks) {
			gone := false
			h.Store = func(ctx context.Context) error {
				gone = gone || Ping(ctx) != nil
				return nil
			}
			h.Window = func(key string, now time.Time, seconds int64) (int64, time.Duration) {
				number, left := window(key, now, seconds)
				if gone {
					number++
				}
				return number, left
			}
		}},
		{"loses hits of a failover", "failovers/hits-meanwhile-count", func(h *Hooks) {
			gone := false
			h.Store = func(ctx context.Context) error {
				gone = gone || Ping(ctx) != nil
				return nil
			}
			h.Charge = func(hits uint64, _ bool) uint64 {
				if gone {
					return 0
				}
				return hits
			}
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

// said changes each status.
func said(change func(s *descriptorStatus)) func(h *Hooks) {
	return func(h *Hooks) {
		h.Finish = func(_ *request, a *response) *response {
			for _, s := range a.GetStatuses() {
				change(s)
			}
			return a
		}
	}
}
