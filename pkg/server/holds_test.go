package server

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/weirproxy/weir/internal/testing/metricstest"
	"github.com/weirproxy/weir/internal/testing/must"
)

const holdRules = `domain: edge
descriptors:
  - key: model
    rate_limit: {algorithm: concurrency, max_in_flight: 2, name: slots, hold: {begin: request, end: done, at_most: 1m}}
  - key: tenant
    rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 100, hold: {begin: request, end: done, at_most: 1m}}
`

// is fails unless got is the message that text, in the text form of protobuf, stands for.
func is[M proto.Message](t *testing.T, got, want M, text string) {
	t.Helper()
	must.Do(t, prototext.Unmarshal([]byte(text), want))
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func TestConcurrencyOnTheWire(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, holdRules, nil)
		const limit = ` current_limit { requests_per_unit: 2 name: "slots" } `
		for _, step := range []struct{ key, name, want string }{
			{"request", "r1", `overall_code: OK statuses { code: OK` + limit + `limit_remaining: 1 duration_until_reset { seconds: 60 } }`},
			{"request", "r2", `overall_code: OK statuses { code: OK` + limit + `duration_until_reset { seconds: 60 } }`},
			{"request", "r3", `overall_code: OVER_LIMIT statuses { code: OVER_LIMIT` + limit + `duration_until_reset { seconds: 58 } }`},
			{"request", "r2", `overall_code: OK statuses { code: OK` + limit + `duration_until_reset { seconds: 58 } }`},
			{"done", "r3", `overall_code: OK statuses { code: OK` + limit + `duration_until_reset { seconds: 57 } }`},
			{"done", "r1", `overall_code: OK statuses { code: OK` + limit + `limit_remaining: 1 duration_until_reset { seconds: 56 } }`},
			{"request", "r3", `overall_code: OK statuses { code: OK` + limit + `duration_until_reset { seconds: 60 } }`},
		} {
			t.Logf("%s=%s", step.key, step.name)
			is(t, f.ask(t, descriptor("model", "m", step.key, step.name)), new(ratelimitv3.RateLimitResponse), step.want)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute) // of at_most
		is(t, f.ask(t, hits(2, "model", "m", "request", "r9")), new(ratelimitv3.RateLimitResponse),
			`overall_code: OK statuses { code: OK`+limit+`duration_until_reset { seconds: 60 } }`)
	})
}

func TestAnOverrideOfConcurrencyOnTheWire(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, holdRules, nil)
		is(t, f.ask(t, override(7, typev3.RateLimitUnit_HOUR, 0, "model", "m", "request", "r1")), new(ratelimitv3.RateLimitResponse),
			`overall_code: OK statuses { code: OK current_limit { requests_per_unit: 7 } limit_remaining: 6 duration_until_reset { seconds: 60 } }`)
	})
}

func TestDynamicMetadataNamesWhatIsHeld(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, holdRules, func(o *Options) { o.DynamicMetadata = true })
		for _, step := range []struct {
			key, name string
			hits      uint64
			want      map[string]any
		}{
			{"request", "r1", 30, map[string]any{"phase": "begin", "holder": "r1", "hits": 30.0}},
			{"request", "r1", 40, map[string]any{"phase": "begin", "holder": "r1", "hits": 30.0}},
			{"request", "r2", 90, map[string]any{"phase": "begin", "holder": "r2", "hits": 0.0}},
			{"done", "r1", 35, map[string]any{"phase": "end", "holder": "r1", "hits": 30.0}},
			{"done", "r1", 35, map[string]any{"phase": "end", "holder": "r1", "hits": 0.0}},
		} {
			got := f.ask(t, hits(step.hits, "tenant", "t", step.key, step.name)).GetDynamicMetadata().AsMap()
			one := map[string]any{
				"entries": []any{"tenant=t", step.key + "=" + step.name}, "hitsAddend": float64(step.hits), "hold": step.want,
			}
			if step.name == "r2" {
				one["code"] = "OVER_LIMIT"
			}
			want := map[string]any{"domain": "edge", "descriptors": []any{one}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s=%s: dynamic_metadata (-want +got):\n%s", step.key, step.name, diff)
			}
		}
	})
}

func TestMetricsOfHolders(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, holdRules+"  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 1}}\n", nil)
		f.ask(t, hits(30, "tenant", "t", "request", "r1"))
		f.ask(t, hits(30, "tenant", "t", "request", "r1"))
		f.ask(t, hits(20, "tenant", "t", "request", "r2"))
		f.ask(t, hits(80, "tenant", "t", "request", "denied"))
		f.ask(t, hits(25, "tenant", "t", "done", "r1"))
		f.ask(t, hits(7, "tenant", "t", "done", "nobody"))
		got := metricstest.Gather(t, f.registry, "weir_holds_")
		maps.DeleteFunc(got, func(name string, _ float64) bool {
			return !strings.Contains(name, `"tenant"`) && !strings.Contains(name, "plain")
		})
		want := map[string]float64{
			`weir_holds_total{domain="edge",event="begun",rule="tenant"}`:        2,
			`weir_holds_total{domain="edge",event="repeated",rule="tenant"}`:     1,
			`weir_holds_total{domain="edge",event="cut",rule="tenant"}`:          0,
			`weir_holds_total{domain="edge",event="ended",rule="tenant"}`:        1,
			`weir_holds_total{domain="edge",event="ended_unseen",rule="tenant"}`: 1,
			`weir_holds_total{domain="edge",event="released",rule="tenant"}`:     0,
			`weir_holds_total{domain="edge",event="ran_out",rule="tenant"}`:      0,
			`weir_holds_held{domain="edge",rule="tenant"}`:                       1,
			`weir_holds_estimated_hits_total{domain="edge",rule="tenant"}`:       30,
			`weir_holds_true_hits_total{domain="edge",rule="tenant"}`:            25,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

// agentgateway sends one list of descriptors twice: before a request to a model with 0 hits, and
// after its answer with the tokens. Each descriptor has its own hits, and the request has 0.
func TestTheTwoCallsOfAgentgateway(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, `domain: agentgateway
descriptors:
  - key: user
    rate_limits:
      - {algorithm: token_bucket, unit: hour, requests_per_unit: 1000, hold: {pair: request_id, at_most: 10m}}
      - {algorithm: concurrency, max_in_flight: 2, hold: {pair: request_id, at_most: 10m}}
  - key: team
    rate_limit: {unit: day, budget: 2.50, hold: {pair: request_id, at_most: 10m}}
`, func(o *Options) { o.DynamicMetadata = true })
		calls := func(id string, tokens, cost uint64) (ratelimitv3.RateLimitResponse_Code, string) {
			answer, err := f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{
				Domain: "agentgateway",
				Descriptors: []*commonv3.RateLimitDescriptor{
					hits(tokens, "user", "alice", "request_id", id), hits(cost, "team", "red", "request_id", id),
				},
			})
			must.Do(t, err)
			var phases []string
			for _, d := range answer.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues() {
				hold := d.GetStructValue().GetFields()["hold"].GetStructValue()
				phases = append(phases, hold.GetFields()["phase"].GetStringValue())
			}
			return answer.GetOverallCode(), strings.Join(phases, " ")
		}
		for i, step := range []struct {
			id           string
			tokens, cost uint64
			code         ratelimitv3.RateLimitResponse_Code
			phases       string
		}{
			{"r1", 0, 0, ratelimitv3.RateLimitResponse_OK, "begin begin"},
			{"r2", 0, 0, ratelimitv3.RateLimitResponse_OK, "begin begin"},
			{"r3", 0, 0, ratelimitv3.RateLimitResponse_OVER_LIMIT, "begin begin"}, // two are in flight
			{"r1", 900, 2_000_000, ratelimitv3.RateLimitResponse_OK, "end end"},
			{"r3", 0, 0, ratelimitv3.RateLimitResponse_OK, "begin begin"},
			{"r2", 400, 600_000, ratelimitv3.RateLimitResponse_OK, "end end"}, // beyond both limits
			{"r3", 0, 0, ratelimitv3.RateLimitResponse_OK, "end end"},
			{"r4", 0, 0, ratelimitv3.RateLimitResponse_OVER_LIMIT, "begin begin"},
		} {
			if code, phases := calls(step.id, step.tokens, step.cost); code != step.code || phases != step.phases {
				t.Errorf("call %d: got %v, %s; want %v, %s", i, code, phases, step.code, step.phases)
			}
		}
	})
}
