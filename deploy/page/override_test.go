package page

import (
	"context"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"

	"github.com/weirproxy/weir/test/parts"
)

// A limit that comes with a request counts under a key of its own. The button beside that key must
// not reset the key of the rule.
func TestTheButtonOfAKeyWithALimitOfItsOwnResetsThatKeyAlone(t *testing.T) {
	w := serve(t, shop)
	conn := dial(t, w.GRPC)
	override := &rlsv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 500, Unit: typev3.RateLimitUnit_DAY}
	for _, limit := range []*rlsv3.RateLimitDescriptor_RateLimitOverride{nil, override} {
		if err := chargeDave(parts.Soon(t), conn, limit); err != nil {
			t.Fatal(err)
		}
	}
	b := watch(t, w)
	b.awaitText("#live", "live")
	b.do(choose("#keys-all select[id$=window]", "600s"), choose("#keys-all select[id$=order]", "TOP_ORDER_HITS")) // no more hits come
	const rows = "[...document.querySelectorAll('#keys-all tbody tr')]"
	const own, rule = rows + ".find(e => e.innerText.includes('500 per day'))", rows + ".find(e => e.innerText.includes('1,000 per hour'))"
	const used = "/9[3-9]\\d left/.test(" + rule + "?.innerText)" // the rule gives back a hit in four seconds
	b.await(own + "?.innerText.includes('430 left') && " + used)
	b.do(script("%s.querySelector(\"button[aria-label^='Reset']\").click()", own))
	b.awaitText("#ask-dialog", "user=dave")
	b.click("#ask-ok")
	b.awaitText("#message", "is forgotten")
	b.await(own + "?.innerText.includes('500 left')")
	if !eval[bool](b, used) {
		t.Errorf("the key of the rule is reset too: %s", eval[string](b, rule+".innerText"))
	}
}

// chargeDave asks about a key of a rule with 70 hits.
func chargeDave(ctx context.Context, conn *grpc.ClientConn, limit *rlsv3.RateLimitDescriptor_RateLimitOverride) error {
	_, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{
		Domain: "shop", HitsAddend: 70, Descriptors: []*rlsv3.RateLimitDescriptor{{
			Entries: []*rlsv3.RateLimitDescriptor_Entry{{Key: "plan", Value: "free_trial"}, {Key: "user", Value: "dave"}}, Limit: limit,
		}},
	})
	return err
}
