package page

import (
	"testing"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/metadata"

	"github.com/weirproxy/weir/internal/testing/must"
)

const divided = `domain: edge
descriptors:
  - key: tenant
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 100, burst: 80}
`

// A limit that is divided has one bar, cut by Envoy. Without such limits the page says nothing.
func TestALimitThatIsDividedIsABarCutByEnvoy(t *testing.T) {
	w := serve(t, divided)
	b := watch(t, w)
	b.await("document.querySelector('#quotas').hidden")
	conn := dial(t, w.GRPC)
	for _, name := range []string{"edge-1", "<b>edge-2"} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-weir-envoy", name)
		stream := must.Get(rlqsv3.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx))(t)
		must.Do(t, stream.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
			{BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"tenant": "acme"}}, NumRequestsAllowed: 1},
		}}))
		must.Get(stream.Recv())(t)
	}
	b.awaitText("#quotas-rows", "tenant=acme")
	b.awaitText("#quotas-rows", "edge-1")
	b.awaitText("#quotas-rows", "<b>edge-2")
	b.awaitText("#quotas-rows", "allowed 1 before its first assignment")
	b.await("[...document.querySelectorAll('#quotas .cut i')].filter(e => parseFloat(e.style.width) > 0).length === 2")
	b.await("!document.querySelector('#quotas-link').hidden")
}
