// Package ranges has sets of ranges of IP addresses, such as a block list of a million lines. A
// look for an address takes less than a hundred nanoseconds in caches, and never allocates.
package ranges

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
)

// Set is a set of ranges. A range takes at most 36 bytes. Immutable, and safe for concurrent use.
type Set struct {
	count  int // of ranges, each once
	v4, v6 intervals
}

// intervals is a sorted list of the addresses at which another range, or none, becomes the longest
// one. The first one is 0. index has the places of the addresses by their distance from base, of
// which shift bits do not count. A search looks at one part of the list.
type intervals struct {
	highs []uint64 // of the addresses
	lows  []uint64 // of the addresses; nil: all are 0
	bits  []uint8  // of the longest range from there on: the length of the prefix and one; 0: no range

	base  address
	shift uint8
	index []uint32 // of each distance, the place of the first address; one more is the end. nil: a short list
}

// address is an address as a number: IPv4 has 32 bits of the high part.
type address struct{ high, low uint64 }

func newAddress(a netip.Addr) address {
	if a.Is4() {
		b := a.As4()
		return address{high: uint64(binary.BigEndian.Uint32(b[:])) << 32}
	}
	return addressOfIPv6(a)
}

// addressOfIPv6 does not use As16, which copies the two words of an address as one. A processor
// then waits until all looks before are done.
func addressOfIPv6(a netip.Addr) address {
	var words [16]byte
	b, _ := a.AppendBinary(words[:0])
	if len(b) != len(words) {
		return address{} // of an address that is not valid
	}
	return address{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}
}

func (a address) compare(b address) int {
	return cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low))
}

// next returns the address after the last one of a range; ok is false for the largest address.
func (a address) next() (after address, ok bool) {
	a.low++
	if a.low == 0 {
		a.high++
	}
	return a, a != address{}
}

// Range is the addresses of one prefix. The zero value is no range.
type Range struct {
	first, last address
	bits        uint8 // as in intervals
	isV6        bool
}

// Parse reads a range such as 10.0.0.0/8 or 2001:db8::/32, or a single address. A range of IPv6
// that maps IPv4 is one of IPv4. loose says that the address has bits beyond the prefix, which do
// not count.
func Parse(text string) (r Range, loose, ok bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return Range{}, false, false
		}
		a = a.Unmap()
		return rangeOf(netip.PrefixFrom(a, a.BitLen())), false, true
	}
	const mapped = 96 // bits of the prefix of all mapped addresses
	if p.Addr().Is4In6() && p.Bits() >= mapped {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return rangeOf(p.Masked()), p.Masked() != p, true
}

func rangeOf(p netip.Prefix) Range {
	bits := p.Bits()
	r := Range{first: newAddress(p.Addr()), bits: uint8(bits + 1), isV6: p.Addr().Is6()}
	r.last = address{r.first.high | ^uint64(0)>>min(bits, 64), r.first.low | ^uint64(0)>>max(bits-64, 0)}
	return r
}

// String returns the range as 10.0.0.0/8, with a prefix also for a single address.
func (r Range) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], r.first.high)
	binary.BigEndian.PutUint64(b[8:], r.first.low)
	a := netip.AddrFrom16(b)
	if !r.isV6 {
		a = netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.PrefixFrom(a, int(r.bits)-1).String()
}

// New makes a set. New changes the order of the list, and does not keep it.
func New(all []Range) *Set {
	family := func(r Range) int {
		if r.isV6 {
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b Range) int {
		return cmp.Or(cmp.Compare(family(a), family(b)), a.first.compare(b.first), cmp.Compare(a.bits, b.bits))
	})
	all = slices.Compact(all)
	v6 := slices.IndexFunc(all, func(r Range) bool { return r.isV6 })
	if v6 < 0 {
		v6 = len(all)
	}
	return &Set{count: len(all), v4: newIntervals(all[:v6]), v6: newIntervals(all[v6:])}
}

// Len returns the number of different ranges.
func (s *Set) Len() int { return s.count }

// IsIPv4 reports whether all ranges are of IPv4. Then an address in the set begins with a digit, or
// with a colon.
func (s *Set) IsIPv4() bool { return len(s.v6.bits) == 1 && s.v6.bits[0] == 0 }

// IsIPv6 reports whether all ranges are of IPv6.
func (s *Set) IsIPv6() bool { return len(s.v4.bits) == 1 && s.v4.bits[0] == 0 }

// maxPacked is the most ranges that Pack packs.
const maxPacked = 8

// Pack returns at most 8 ranges of IPv4 as one text, for PackedHas. For other sets the text is "".
func (s *Set) Pack() string {
	if s.count > maxPacked || !s.IsIPv4() {
		return ""
	}
	var packed []byte
	for i, first := range s.v4.highs {
		if s.v4.bits[i] == 0 {
			continue
		}
		after := uint64(1) << 32
		if i+1 < len(s.v4.highs) {
			after = s.v4.highs[i+1] >> 32
		}
		packed = binary.BigEndian.AppendUint32(packed, uint32(first>>32))
		packed = binary.BigEndian.AppendUint32(packed, uint32(after-1))
	}
	return string(packed)
}

// PackedHas is [Set.Has] for a set that Pack has packed.
func PackedHas(packed, text string) bool {
	a, ok := parseAddress(text)
	if !ok || !a.Is4() {
		return false
	}
	b := a.As4()
	x := binary.BigEndian.Uint32(b[:])
	for ; packed != ""; packed = packed[8:] {
		if number(packed) <= x && x <= number(packed[4:]) {
			return true
		}
	}
	return false
}

// number returns the first four bytes of a text as a number.
func number(text string) uint32 {
	return uint32(text[0])<<24 | uint32(text[1])<<16 | uint32(text[2])<<8 | uint32(text[3])
}

// Has reports whether a text is an address in a range of the set. IPv4 in IPv6 is IPv4. The zone of
// an address does not count.
func (s *Set) Has(text string) bool {
	a, ok := parseAddress(text)
	if ok {
		_, ok = s.find(a)
	}
	return ok
}

// Longest returns the smallest range that has an address, which is in the set.
func (s *Set) Longest(text string) string {
	a, _ := parseAddress(text)
	length, _ := s.find(a)
	p, _ := a.Prefix(length) // the length is one of the family
	return p.String()
}

// AppendSubnet appends the subnet of an address, such as 10.1.2.0/24: the prefix with that many
// bits for its family. A text that is no address stays as it is.
func AppendSubnet(dst []byte, text string, v4, v6 int) []byte {
	a, ok := parseAddress(text)
	bits := v6
	if a.Is4() {
		bits = v4
	}
	p, err := a.Prefix(bits)
	if !ok || err != nil {
		return append(dst, text...)
	}
	return p.AppendTo(dst)
}

// newIntervals makes the list of sorted ranges, of which any two are disjoint or one has the other.
func newIntervals(ranges []Range) intervals {
	b := &intervalBuilder{firsts: make([]address, 1, 2*len(ranges)+1), bits: make([]uint8, 1, 2*len(ranges)+1)}
	for _, s := range ranges {
		for len(b.open) > 0 && b.open[len(b.open)-1].last.compare(s.first) < 0 {
			b.end()
		}
		b.set(s.first, s.bits)
		b.open = append(b.open, s)
	}
	for len(b.open) > 0 {
		b.end()
	}
	made := intervals{highs: make([]uint64, len(b.firsts)), bits: slices.Clone(b.bits)}
	for i, first := range b.firsts {
		made.highs[i] = first.high
		if first.low > 0 && made.lows == nil {
			made.lows = make([]uint64, len(b.firsts))
		}
		if made.lows != nil {
			made.lows[i] = first.low
		}
	}
	made.makeIndex()
	return made
}

// makeIndex makes an index with a place for about four of the list: four addresses fill one line of
// a cache. A short list has no index.
func (s *intervals) makeIndex() {
	const short = 8
	n := len(s.highs)
	if n <= short {
		return
	}
	s.base = s.at(1)
	s.shift = s.at(n - 1).minus(s.base).shiftTo(uint64(n)/4 + 1)
	s.index = make([]uint32, s.distance(s.at(n-1))+2)
	for i := n - 1; i > 0; i-- {
		s.index[s.distance(s.at(i))] = uint32(i)
	}
	s.index[len(s.index)-1] = uint32(n)
	for i := len(s.index) - 2; i >= 0; i-- { // a distance without addresses is where the next one begins
		if s.index[i] == 0 {
			s.index[i] = s.index[i+1]
		}
	}
}

// minus returns the distance from an address that is not after a.
func (a address) minus(b address) address {
	low, borrow := bits.Sub64(a.low, b.low, 0)
	return address{a.high - b.high - borrow, low}
}

// shiftTo returns how many bits a loses to become at most n, which is below 1<<62.
func (a address) shiftTo(n uint64) uint8 {
	if a.high == 0 {
		return uint8(bits.Len64(a.low / n))
	}
	return uint8(max(bits.Len64(a.high)+64-bits.Len64(n), 0) + 1)
}

// distance returns the place in index of an address that is not below base, at most the largest
// number.
func (s *intervals) distance(x address) uint64 {
	d := x.minus(s.base)
	if s.shift >= 64 {
		return d.high >> (s.shift - 64)
	}
	if d.high>>s.shift != 0 {
		return 1<<64 - 1
	}
	return d.high<<(64-s.shift) | d.low>>s.shift
}

// find returns the place of the interval that has an address, and its bits. The load of bits does
// not wait for the loads of addresses before it.
func (s *intervals) find(x address) (at int, bits uint8) {
	if x.high < s.base.high || x.high == s.base.high && x.low < s.base.low {
		return 0, s.bits[0]
	}
	left := len(s.highs) - 1 // the address with place at is not after x
	if s.index != nil {
		d := min(s.distance(x), uint64(len(s.index)-2))
		at = int(s.index[d]) - 1
		left = int(s.index[d+1]) - 1 - at
	}
	first := at
	bits = s.bits[at]
	for left > 0 {
		half := (left + 1) / 2
		high := s.highs[at+half]
		if high < x.high || high == x.high && (s.lows == nil || s.lows[at+half] <= x.low) {
			at += half
		}
		left -= half
	}
	if at != first {
		bits = s.bits[at]
	}
	return at, bits
}

// intervalBuilder collects the addresses of intervals, in order.
type intervalBuilder struct {
	firsts []address
	bits   []uint8
	open   []Range // each has the next one
}

// set begins an interval.
func (b *intervalBuilder) set(at address, bits uint8) {
	last := len(b.firsts) - 1
	switch {
	case b.firsts[last] == at:
		b.bits[last] = bits
	case b.bits[last] != bits:
		b.firsts, b.bits = append(b.firsts, at), append(b.bits, bits)
	}
}

// end ends the innermost open range: the one around it goes on.
func (b *intervalBuilder) end() {
	innermost := b.open[len(b.open)-1]
	b.open = b.open[:len(b.open)-1]
	after, ok := innermost.last.next()
	bits := uint8(0)
	if len(b.open) > 0 {
		bits = b.open[len(b.open)-1].bits
	}
	if ok {
		b.set(after, bits)
	}
}

// find returns the length of the longest prefix that has an address; ok is false without one.
func (s *Set) find(a netip.Addr) (length int, ok bool) {
	of := &s.v6
	if a.Is4() {
		of = &s.v4
	}
	_, bits := of.find(newAddress(a))
	return int(bits) - 1, bits > 0
}

// Sum is a SHA-256 of the set. The order of its ranges has no effect.
func (s *Set) Sum() (sum [sha256.Size]byte) {
	hash := sha256.New()
	var text []byte
	for _, of := range [...]*intervals{&s.v4, &s.v6} {
		for i := range of.highs {
			first := of.at(i)
			text = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(text[:0], first.high), first.low)
			_, _ = hash.Write(append(text, of.bits[i])) // a hash never fails
		}
		_, _ = hash.Write([]byte{0})
	}
	hash.Sum(sum[:0])
	return sum
}

// at returns the address with a place in the list.
func (s *intervals) at(i int) address {
	if s.lows == nil {
		return address{high: s.highs[i]}
	}
	return address{s.highs[i], s.lows[i]}
}

// Covers reports whether all addresses of another set are in s too. If the other set has more than
// a few hundred ranges, the answer is false.
func (s *Set) Covers(o *Set) bool { return s.v4.covers(&o.v4) && s.v6.covers(&o.v6) }

func (s *intervals) covers(o *intervals) bool {
	const most = 1000
	if len(o.highs) > most {
		return false
	}
	for i := range o.highs {
		if o.bits[i] == 0 {
			continue
		}
		for at, _ := s.find(o.at(i)); at < len(s.highs); at++ {
			if i+1 < len(o.highs) && s.at(at).compare(o.at(i+1)) >= 0 {
				break
			}
			if s.bits[at] == 0 {
				return false
			}
		}
	}
	return true
}

// parseAddress returns the address of a value: without a zone, and IPv4 where IPv6 maps it.
func parseAddress(value string) (a netip.Addr, ok bool) {
	if strings.IndexByte(value, ':') < 0 {
		return parseIPv4(value)
	}
	// An error of netip takes memory, and values are often no addresses.
	const longest, letters = len("0000:0000:0000:0000:0000:ffff:255.255.255.255"), "0123456789abcdefABCDEF:."
	plain, _, _ := strings.Cut(value, "%")
	if len(plain) > longest || strings.Trim(plain, letters) != "" {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(value)
	return a.Unmap().WithZone(""), err == nil
}

// parseIPv4 reads the addresses of IPv4 that netip reads.
func parseIPv4(value string) (a netip.Addr, ok bool) {
	var octets [4]byte
	for i := range octets {
		n, digits := 0, 0
		for ; digits < len(value) && digits < 4 && '0' <= value[digits] && value[digits] <= '9'; digits++ {
			n = 10*n + int(value[digits]-'0')
		}
		last := i == len(octets)-1
		switch {
		case digits == 0, n > 255, digits > 1 && value[0] == '0', last != (len(value) == digits), !last && value[digits] != '.':
			return netip.Addr{}, false
		}
		octets[i] = byte(n)
		if !last {
			value = value[digits+1:]
		}
	}
	return netip.AddrFrom4(octets), true
}
