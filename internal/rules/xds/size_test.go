package xds

import (
	"runtime"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Before the bound, 16 MiB of empty descriptors became 2 GB.
func TestAResponseAboveTheBoundIsNotDecoded(t *testing.T) {
	bounds := descriptors.Options{MaxBytes: 1 << 20}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"long": {wire(t, &ratelimitv3.RateLimitConfig{Name: "r", Domain: strings.Repeat("x", 2<<20)}), "xds:r: has 2097160 bytes, must be at most 1048576 together (max-rules-bytes)"},
		"empty descriptors": {
			append(wire(t, config("r", "d", 1)), strings.Repeat("\x1a\x00", 1<<19)...),
			"xds:r: has 12583032 bytes, must be at most 1048576 together (max-rules-bytes)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			all := resourcesOf([]*anypb.Any{
				{TypeUrl: typeURL, Value: c.data}, {TypeUrl: typeURL, Value: wire(t, config("small", "s", 1))},
			}, bounds)
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 2*uint64(len(c.data))+64<<10 {
				t.Errorf("%d bytes allocated to refuse %d bytes", used, len(c.data))
			}
			_, _, err := descriptors.Load([]descriptors.Source{all[0].Source, all[1].Source}, bounds)
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s alone", err, c.want)
			}
		})
	}
}

func TestTheResourcesOfAResponseAreBoundedTogether(t *testing.T) {
	body := func(name string) *anypb.Any {
		return &anypb.Any{TypeUrl: typeURL, Value: wire(t, config(name, strings.Repeat(name, 600), 1))}
	}
	var refused []string
	for _, r := range resourcesOf([]*anypb.Any{body("a"), body("b"), body("c")}, descriptors.Options{MaxBytes: 1500}) {
		for _, e := range r.Mistakes {
			refused = append(refused, r.name+" "+e.Text)
		}
	}
	if len(refused) != 1 || !strings.HasPrefix(refused[0], "c has 6") || !strings.Contains(refused[0], " bytes beside 12") {
		t.Errorf("refused: %q, want the third of about 600 bytes each", refused)
	}
}
