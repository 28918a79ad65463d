package limiter

import "github.com/weirproxy/weir/pkg/descriptors"

// chargeBytes is the memory of a charge with its decision, its limit and its state in the store, in
// bytes. Beside them stand two copies of its key.
const chargeBytes = 512

// modestBytes is the memory of further charges that FurtherBytes need not look at.
const modestBytes = 8 << 10

// FurtherBytes returns about how many bytes [Limiter.Check] takes for the charges of a request,
// beyond one charge for each descriptor. size is the length of all texts of the request. The result
// is 0 for nearly all requests, and then takes some nanoseconds; else as long as a match.
func (l *Limiter) FurtherBytes(r *Request, size int) int64 {
	rules := l.current.Load().rules
	further := rules.MostCharges() - 1
	if further <= 0 || further*(len(r.Descriptors)*chargeBytes+2*size) <= modestBytes {
		return 0
	}
	domain := rules.Domain(r.Domain)
	if domain == nil {
		return 0
	}
	charges, bytes := 0, int64(0)
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		rule := domain.Match(d.Entries)
		if rule == nil {
			rule = domain.Default
		}
		if rule == nil || d.Override != nil {
			continue
		}
		n := rule.Charges()
		if n < 2 {
			continue
		}
		if charges += n; charges > MaxCharges { // the request is refused
			break
		}
		bytes += int64(n-1) * (chargeBytes + 2*textBytes(d.Entries))
	}
	return bytes
}

func textBytes(entries []descriptors.Entry) (sum int64) {
	for i := range entries {
		sum += int64(len(entries[i].Key) + len(entries[i].Value))
	}
	return sum
}
