package admin

import (
	"encoding/hex"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

const holdRules = `domain: edge
descriptors:
  - key: model
    rate_limit: {algorithm: concurrency, max_in_flight: 2, name: slots, hold: {begin: request, end: done, at_most: 1m}}
  - key: tenant
    rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 100, hold: {begin: request, end: done, at_most: 1m}}
`

// holder returns the id of a holder.
func holder(name string) string {
	id := store.HolderOf([]byte(name))
	return hex.EncodeToString(id[:])
}

func TestHoldersAreListedAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, holdRules, nil)
		client := f.service(t)
		f.ask(t, descriptor("model", "m", "request", "r1"))
		time.Sleep(time.Second)
		f.ask(t, descriptor("model", "m", "request", "r2"))
		entries := adminDescriptor("model", "m").GetEntries()
		const limit = `limit { algorithm: "concurrency" requests_per_unit: 2 burst: 2 name: "slots" at_most { seconds: 60 } } key: "4:edge|5:model=1:m#concurrency" `
		r1 := ` { id: "` + holder("r1") + `" hits: 1 begun_at { seconds: 946684800 } until { seconds: 946684860 } } `
		r2 := ` { id: "` + holder("r2") + `" hits: 1 begun_at { seconds: 946684801 } until { seconds: 946684861 } } `
		rule := `rule { domain: "edge" path: "model" file: "rules.yaml" line: 3 name: "slots" begin: "request" end: "done"
			limits { algorithm: "concurrency" requests_per_unit: 2 burst: 2 name: "slots" at_most { seconds: 60 } } } `

		got, err := client.ListHolders(t.Context(), &adminv1.ListHoldersRequest{Domain: "edge", Entries: entries})
		if err != nil {
			t.Fatal(err)
		}
		is(t, got, new(adminv1.ListHoldersResponse), rule+`limits { `+limit+`listed: true number: 2 holders`+r1+`holders`+r2+`}`)
		if got, err = client.ListHolders(t.Context(), &adminv1.ListHoldersRequest{Domain: "edge", Entries: entries, Most: 1}); err != nil {
			t.Fatal(err)
		}
		is(t, got, new(adminv1.ListHoldersResponse), rule+`limits { `+limit+`listed: true number: 2 holders`+r1+`}`)

		f.logs.Take()
		release := func(r *adminv1.ReleaseHolderRequest) *adminv1.ReleaseHolderResponse {
			r.Domain, r.Entries = "edge", entries
			got, err := client.ReleaseHolder(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		is(t, release(&adminv1.ReleaseHolderRequest{Holder: &adminv1.ReleaseHolderRequest_Name{Name: "r1"}}), new(adminv1.ReleaseHolderResponse),
			`limits { `+limit+`holder`+r1+`status: HOLDER_STATUS_HELD }`)
		if log, want := f.logs.Take(), `msg="an operator released a holder" key="4:edge|5:model=1:m#concurrency" holder=`; !strings.Contains(log, want) {
			t.Errorf("log: got %q; want %q", log, want)
		}
		is(t, release(&adminv1.ReleaseHolderRequest{Holder: &adminv1.ReleaseHolderRequest_Id{Id: holder("r2")}}), new(adminv1.ReleaseHolderResponse),
			`limits { `+limit+`holder`+r2+`status: HOLDER_STATUS_HELD }`)
		is(t, release(&adminv1.ReleaseHolderRequest{Holder: &adminv1.ReleaseHolderRequest_Name{Name: "r1"}}), new(adminv1.ReleaseHolderResponse),
			`limits { `+limit+`holder { id: "`+holder("r1")+`" } }`)
		if got := f.ask(t, hits(2, "model", "m", "request", "r3")); got.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
			t.Errorf("after the releases: got %v", got)
		}
	})
}

func TestMistakesInCallsAboutHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, holdRules, nil)
		client := f.service(t)
		entries, other := adminDescriptor("model", "m").GetEntries(), adminDescriptor("other", "m").GetEntries()
		_, err := client.ListHolders(t.Context(), &adminv1.ListHoldersRequest{Domain: "edge", Entries: other})
		if status.Code(err) != codes.NotFound {
			t.Errorf("no such rule: got %v", err)
		}
		for name, tt := range map[string]struct {
			request *adminv1.ReleaseHolderRequest
			want    codes.Code
		}{
			"no holder": {&adminv1.ReleaseHolderRequest{Entries: entries}, codes.InvalidArgument},
			"no name":   {&adminv1.ReleaseHolderRequest{Entries: entries, Holder: &adminv1.ReleaseHolderRequest_Name{}}, codes.InvalidArgument},
			"short id":  {&adminv1.ReleaseHolderRequest{Entries: entries, Holder: &adminv1.ReleaseHolderRequest_Id{Id: holder("r2")[:30]}}, codes.InvalidArgument},
			"no rule":   {&adminv1.ReleaseHolderRequest{Entries: other, Holder: &adminv1.ReleaseHolderRequest_Name{Name: "r"}}, codes.NotFound},
		} {
			tt.request.Domain = "edge"
			if _, err := client.ReleaseHolder(t.Context(), tt.request); status.Code(err) != tt.want {
				t.Errorf("%s: got %v; want %v", name, err, tt.want)
			}
		}
	})
}

func TestExplainShowsHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, holdRules, nil)
		f.ask(t, descriptor("model", "m", "request", "r1"))
		got, err := f.service(t).Explain(t.Context(), &adminv1.ExplainRequest{Domain: "edge", Descriptors: []*adminv1.Descriptor{
			adminDescriptor("model", "m", "done", "r1"), adminDescriptor("model", "m"),
		}})
		if err != nil {
			t.Fatal(err)
		}
		const limit = `limit { algorithm: "concurrency" requests_per_unit: 2 burst: 2 name: "slots" at_most { seconds: 60 } } key: "4:edge|5:model=1:m#concurrency" `
		r1 := ` { id: "` + holder("r1") + `" hits: 1 begun_at { seconds: 946684800 } until { seconds: 946684860 } } `
		is(t, got, new(adminv1.ExplainResponse), `
			descriptors { matched: true why: "model=m: key only; done=r1: ends a hold; rule model applies"
				rule { domain: "edge" path: "model" file: "rules.yaml" line: 3 name: "slots" begin: "request" end: "done"
					limits { algorithm: "concurrency" requests_per_unit: 2 burst: 2 name: "slots" at_most { seconds: 60 } } }
				limits { `+limit+` source: "memory" allowed: true remaining: 2 retry_after {} reset_after {}
					holders { `+limit+` listed: true number: 1 holders`+r1+`} holder`+r1+`holder_status: HOLDER_STATUS_HELD }
				steps { key: "model" value: "m" reason: "key_only" file: "rules.yaml" line: 3 }
				steps { key: "done" value: "r1" reason: "end" file: "rules.yaml" line: 3 } }
			descriptors {
				why: "model=m: its rule has hold, and needs one more entry: request or done; no rule matches, and the domain has no default: not limited"
				steps { key: "model" value: "m" reason: "no_holder" file: "rules.yaml" line: 3 }
				nearest_miss { rule: "model" file: "rules.yaml" line: 3 entry: 1 beside: ["request", "done"] why: "an entry is missing that names a holder: request or done" } }
			domain { name: "edge" file: "rules.yaml" line: 1 }`)
	})
}
