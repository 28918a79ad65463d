package page

import (
	"testing"
)

// The fastest of thirty loads counts: other programs share the machine of a test.
func TestTheFirstPaintComesWithin200Milliseconds(t *testing.T) {
	w := serve(t, shop)
	traffic(t, throughEnvoy(t, w))
	b := open(t)
	fastest := 1e9
	for range 30 {
		b.show("http://" + w.Admin + "/")
		b.await("performance.getEntriesByName('first-contentful-paint').length > 0")
		fastest = min(fastest, eval[float64](b, "performance.getEntriesByName('first-contentful-paint')[0].startTime"))
		b.awaitText("#verdict", "/s")
		if fastest <= 200 {
			break
		}
	}
	if fastest > 200 {
		t.Errorf("the fastest first paint took %.0f ms, want at most 200", fastest)
	}
	t.Logf("the fastest first paint took %.0f ms", fastest)
}
