package ranges

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/race"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Third: []string{}, Std: []string{
		"cmp", "crypto/sha256", "encoding/binary", "math/bits", "net/netip", "slices", "strings",
	}})
}

// randomRanges returns n ranges of lengths as block lists have them. The ranges of a dense list
// have one another.
func randomRanges(random *rand.Rand, n int, isV6, isDense bool) []netip.Prefix {
	all := make([]netip.Prefix, n)
	for i := range all {
		var b [16]byte
		for j := range b {
			if b[j] = byte(random.Uint32()); isDense {
				b[j] &= 0x81
			}
		}
		length := random.IntN(129)
		switch {
		case isV6 && isDense:
		case isV6:
			b[0], b[1], b[2] = 0x20, 0x01, b[2]&0x0f
			length = 32 + random.IntN(33)
		case isDense:
			length = random.IntN(33)
		default:
			length = 16 + random.IntN(17)
		}
		a := netip.AddrFrom16(b)
		if !isV6 {
			a = netip.AddrFrom4([4]byte(b[:4]))
		}
		all[i] = netip.PrefixFrom(a, length).Masked()
	}
	return all
}

func setOf(prefixes []netip.Prefix) *Set {
	all := make([]Range, 0, len(prefixes))
	for _, p := range prefixes {
		all = append(all, rangeOf(p))
	}
	return New(all)
}

// longest looks at every range, one after another.
func longest(all []netip.Prefix, a netip.Addr) (best netip.Prefix, ok bool) {
	for _, p := range all {
		if p.Contains(a) && (!ok || p.Bits() > best.Bits()) {
			best, ok = p, true
		}
	}
	return best, ok
}

// edges returns the addresses at both ends of a range, and the ones beside them.
func edges(p netip.Prefix) []netip.Addr {
	first, last := p.Addr(), p.Addr().As16()
	low := 128 - first.BitLen()
	for i := low + p.Bits(); i < 128; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end := netip.AddrFrom16(last)
	if first.Is4() {
		end = end.Unmap()
	}
	return slices.DeleteFunc([]netip.Addr{first, end, first.Prev(), end.Next()}, func(a netip.Addr) bool { return !a.IsValid() })
}

func TestSetFindsTheLongestRangeOfEachAddress(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 3000 {
		all := randomRanges(random, n%40, n%2 == 0, n%3 > 0)
		all = append(all, randomRanges(random, n%7, n%2 == 1, n%3 > 0)...)
		set := setOf(all)
		addresses := []netip.Addr{
			netip.IPv4Unspecified(), netip.IPv6Unspecified(), netip.MustParseAddr("255.255.255.255"),
			netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
		}
		for _, p := range all {
			for _, a := range edges(p) {
				addresses = append(addresses, a, withBitChanged(a, random.IntN(128)), withBitChanged(a, 63), withBitChanged(a, 0))
			}
		}
		for _, a := range addresses {
			want, has := longest(all, a)
			text := a.String()
			if got := set.Has(text); got != has {
				t.Fatalf("%v has %s: got %t, want %t", all, text, got, has)
			}
			if has && set.Longest(text) != want.String() {
				t.Fatalf("%v: the longest range of %s: got %s, want %s", all, text, set.Longest(text), want)
			}
		}
		seen := slices.Clone(all)
		slices.SortFunc(seen, netip.Prefix.Compare)
		if got := set.Len(); got != len(slices.Compact(seen)) {
			t.Fatalf("%v: got %d ranges", all, got)
		}
		if len(all) > 0 && (!set.Covers(setOf(all[:1])) || set.Covers(setOf(nil)) != true) {
			t.Fatalf("%v does not cover its first range, or nothing", all)
		}
		slices.Reverse(all)
		if setOf(all).Sum() != set.Sum() {
			t.Fatalf("%v has another sum in this order", all)
		}
	}
}

// withBitChanged returns an address that differs in one bit.
func withBitChanged(a netip.Addr, bit int) netip.Addr {
	b := a.AsSlice()
	b[bit/8%len(b)] ^= 0x80 >> (bit % 8)
	changed, _ := netip.AddrFromSlice(b)
	return changed
}

func TestCoversSaysWhetherASetHasAllAddresses(t *testing.T) {
	for _, tt := range []struct {
		set, other []string
		want       bool
	}{
		{[]string{"10.0.0.0/8"}, []string{"10.1.0.0/16", "10.255.255.255"}, true},
		{[]string{"10.0.0.0/9", "10.128.0.0/9"}, []string{"10.0.0.0/8"}, true},
		{[]string{"10.0.0.0/9", "10.128.0.0/10"}, []string{"10.0.0.0/8"}, false},
		{[]string{"0.0.0.0/0"}, []string{"::/0"}, false},
		{[]string{"::/0"}, []string{"10.0.0.0/8"}, false},
		{[]string{"2001:db8::/32", "2001:db8:1::/48"}, []string{"2001:db8:1::1"}, true},
		{[]string{"255.0.0.0/8"}, []string{"255.255.255.255", "255.0.0.0"}, true},
	} {
		parse := func(texts []string) *Set {
			var all []Range
			for _, text := range texts {
				r, _, ok := Parse(text)
				if !ok {
					t.Fatalf("%s is no range", text)
				}
				all = append(all, r)
			}
			return New(all)
		}
		if got := parse(tt.set).Covers(parse(tt.other)); got != tt.want {
			t.Errorf("%v covers %v: got %t, want %t", tt.set, tt.other, got, tt.want)
		}
	}
}

func TestAddressesOfIPv4InIPv6AreIPv4(t *testing.T) {
	r, loose, ok := Parse("::ffff:10.0.0.1/104")
	if r.String() != "10.0.0.0/8" || !loose || !ok {
		t.Fatalf("got %s, %t, %t, want 10.0.0.0/8 without the bits beyond", r, loose, ok)
	}
	set := New([]Range{r})
	for text, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "::ffff:a01:203": true, "11.0.0.0": false, "::10.1.2.3": false, "10.1.2.3:80": false,
		"10.1.2.3, 10.0.0.1": false, "010.1.2.3": false, "": false, "10.1.2.0/24": false, "ten": false,
	} {
		if got := set.Has(text); got != want {
			t.Errorf("Has(%q): got %t, want %t", text, got, want)
		}
	}
	all, _, _ := Parse("::/0")
	if New([]Range{all}).Has("10.1.2.3") || !New([]Range{all}).Has("fe80::1%eth0") {
		t.Error("::/0 has an address of IPv4, or lacks one with a zone")
	}
	for text, want := range map[string]string{"10.1.2.3": "10.1.2.0/24", "::ffff:10.1.2.3": "10.1.2.0/24", "2001:db8::1:2": "2001:db8::/64", "ten": "ten"} {
		if got := string(AppendSubnet([]byte("="), text, 24, 64)); got != "="+want {
			t.Errorf("the subnet of %q: got %s, want =%s", text, got, want)
		}
	}
}

// FuzzParse: a range that Parse takes has its own text, and a set of the range has what
// [netip.Prefix.Contains] has.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"10.0.0.0/8", "10.0.0.1", "::/0", "2001:db8::/32", "::ffff:10.0.0.0/100", "fe80::1%eth0", "1.2.3.4/33", "/", "1/1"} {
		f.Add(text, "10.0.0.1")
		f.Add(text, "2001:db8::1")
	}
	f.Fuzz(func(t *testing.T, text, address string) {
		set := New(nil)
		r, _, ok := Parse(text)
		if ok {
			again, loose, ok := Parse(r.String())
			if again != r || loose || !ok {
				t.Fatalf("%q is %s, which is %s", text, r, again)
			}
			set = New([]Range{r})
		}
		a, err := netip.ParseAddr(address)
		want := false
		if err == nil && ok {
			want = netip.MustParsePrefix(r.String()).Contains(a.Unmap().WithZone(""))
		}
		if got := set.Has(address); got != want {
			t.Fatalf("%q has %q: got %t, want %t", text, address, got, want)
		}
		AppendSubnet(nil, address, 24, 64)
	})
}

// A million ranges are small and found at once. So they are where a list is made to be slow: each
// range in another one, or all of them in one place.
func TestMillionRangesAreSmallAndFoundAtOnce(t *testing.T) {
	if race.Short() {
		t.Skip("measures time and memory")
	}
	const n = 1_000_000
	random := rand.New(rand.NewPCG(1, 2))
	oneNet := make([]netip.Prefix, n)
	for i := range oneNet {
		oneNet[i] = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i) &^ 1}), 127-i&1)
	}
	for name, all := range map[string][]netip.Prefix{
		"v4": randomRanges(random, n, false, false), "v6": randomRanges(random, n, true, false),
		"in one another": randomRanges(random, n, true, true), "in one /64": oneNet,
	} {
		before := heap()
		begin := time.Now()
		set := setOf(all)
		made := time.Since(begin)
		bytes := float64(heap()-before) / float64(set.Len())
		if bytes > 60 && set.Len() > n/10 {
			t.Errorf("%s: a range takes %.1f bytes, want at most 60", name, bytes)
		}
		hot, spread := fastest(set, all[:1000]), fastest(set, all)
		t.Logf("%s: %d ranges, %.1f bytes each, made in %v; a look takes %v among 1000 addresses, %v among all", name, set.Len(), bytes, made, hot, spread)
		if hot > time.Microsecond { // under any load
			t.Errorf("%s: a look for an address takes %v", name, hot)
		}
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fastest returns the shortest mean of some looks for the first addresses of ranges.
func fastest(set *Set, all []netip.Prefix) time.Duration {
	const looks = 2000
	random := rand.New(rand.NewPCG(3, 4))
	best := time.Hour
	addresses := make([]netip.Addr, looks)
	for range 300 {
		for i := range addresses {
			addresses[i] = all[random.IntN(len(all))].Addr()
		}
		begin := time.Now()
		for _, a := range addresses {
			set.find(a)
		}
		best = min(best, time.Since(begin)/looks)
	}
	return best
}

func BenchmarkSet(b *testing.B) {
	for _, isV6 := range []bool{false, true} {
		b.Run(fmt.Sprintf("v6=%t", isV6), func(b *testing.B) {
			all := randomRanges(rand.New(rand.NewPCG(1, 2)), 1_000_000, isV6, false)
			set := setOf(all)
			texts := make([]string, 1024)
			for i := range texts {
				texts[i] = all[i*61].Addr().String()
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				set.Has(texts[i&(len(texts)-1)])
				i++
			}
		})
	}
}

// FuzzAddress: a value is an address where netip has one.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{
		"10.0.0.1", "255.255.255.255", "256.1.1.1", "01.1.1.1", "0.0.0.0", "1.2.3", "1.2.3.4.5", "1.2.3.4.", ".1.2.3", "1..2.3", "1.2.3.4%eth0", "", "0", "2001:db8::1",
		"::ffff:10.0.0.1", "fe80::1%eth0", "fe80::1%", "::ffff:10.0.0.1%x", "0000:0000:0000:0000:0000:ffff:255.255.255.255", "a:b", "/api/7", ":", "1.2.3.0000001",
		"fe80::1%a long zone of any text: 0123456789",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		got, ok := parseAddress(value)
		want, err := netip.ParseAddr(value)
		if ok != (err == nil) || ok && got != want.Unmap().WithZone("") {
			t.Fatalf("%q: got %v %t, want %v %v", value, got, ok, want, err)
		}
	})
}

func TestMostValuesThatAreNoAddressesTakeNoMemory(t *testing.T) {
	office, _, _ := Parse("10.0.0.0/8")
	s := New([]Range{office})
	for _, value := range []string{"ten", "", "/api/7", "1.2.3", "256.0.0.1", "http://a", "GET"} {
		if got := testing.AllocsPerRun(100, func() { s.Has(value) }); got != 0 {
			t.Errorf("%q: got %v allocations, want 0", value, got)
		}
	}
}
