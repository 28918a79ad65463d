package limiter

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// valid is the fast path of violations, and must not differ from it.
func TestARequestIsValidIfItHasNoViolations(t *testing.T) {
	l := &Limiter{options: Options{MaxDescriptors: 3}}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "a", "b"})
		r := &Request{Domain: text.Draw(t, "domain"), Hits: rapid.Uint32().Draw(t, "hits")}
		for range rapid.IntRange(0, 4).Draw(t, "descriptors") {
			d := r.Add()
			for range rapid.IntRange(0, 3).Draw(t, "entries") {
				d.Entries = append(d.Entries, Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")})
			}
			d.Hits = rapid.SampledFrom([]uint64{0, 0, 1, algorithms.MaxHits, algorithms.MaxHits + 1}).Draw(t, "own hits")
			d.Probe, d.Refund = rapid.Bool().Draw(t, "probe"), rapid.Bool().Draw(t, "refund")
			if rapid.Bool().Draw(t, "override") {
				d.Override = &Override{
					Requests: rapid.Uint32().Draw(t, "requests"), Multiplier: rapid.SampledFrom([]uint32{0, 1, 1 << 31}).Draw(t, "multiplier"),
					Unit: rapid.SampledFrom([]descriptors.Unit{descriptors.UnitUnknown, descriptors.Second, descriptors.Year, 99}).Draw(t, "unit"),
				}
			}
		}
		if all := l.violations(r); l.valid(r) != (len(all) == 0) {
			t.Fatalf("%+v: valid is %t; the violations are %v", r, l.valid(r), all)
		}
	})
}
