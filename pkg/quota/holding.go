package quota

import (
	_ "embed" // of PartsScript
	"encoding/binary"
	"math"
	"time"
)

// One is a whole limit in the units of a [Portion]. Limits of up to 16 tokens divide it.
const One = 720_720_000

// Portion is a part of a limit: of its rate and of its burst, in units of which [One] is all.
type Portion struct{ Rate, Burst uint32 }

// of returns the part of a limit, rounded down.
func (p Portion) of(l Limit) Limit {
	return Limit{scale(l.Rate, time.Duration(p.Rate), One), scale(l.Burst, time.Duration(p.Burst), One)}
}

// PartsScript is the script that divides limits among processes, see its first lines.
//
//go:embed parts.lua
var PartsScript string

// Holding is the division of a part of a limit. Other processes hold the other parts. One record
// in Redis has all parts of a limit, and [PartsScript] changes it.
//
// # Why all processes together never admit too many
//
// A part of the record is at least the limit of the division of its process. A lowered limit
// counts when the clients have no more. The parts of the record are at most [One] together. A
// claim has the used part, so a part shrinks in the record only after the buckets of all clients
// have settled. A part grows in the record before the answer comes. So at every instant all
// processes use one limit at most, and the proof of the package holds for the sum of all levels.
// The record has the tokens of the burst that nobody holds. These tokens gain by the rate that
// nobody holds, and go to a process with its part.
//
// Calls and answers may be lost, late or repeated. The process drops an answer that it no longer
// waits for. The record drops a call that comes after a later one.
//
// Others get the part of a process that has not called for a time. In that time its last
// assignments have expired: see [Dead]. A process that was stopped must call before it sends an
// order: see [Holding.Wake]. A process that cannot reach Redis keeps its part.
//
// Not safe for concurrent use.
type Holding struct {
	*Division

	whole     Limit
	part      Portion
	called    time.Duration // when the last call with an answer began
	processes int           // in the record
}

// Bounds of time for calls to Redis.
const (
	// Call is the longest time from a call to its answer. A later answer does not count.
	Call = time.Second
	// Away is the longest time without work after which a process may send orders without another
	// call.
	Away = 2 * time.Second
	// Dead is the time without a call, while others call, after which others get the part of a
	// process. A process may call 10 seconds before its last order at the earliest. parts.lua has
	// Dead, too.
	Dead = 40500 * time.Millisecond
)

// Hold returns a division without a part of a limit.
func Hold(whole Limit, now time.Duration) *Holding {
	return &Holding{Division: New(Limit{}, now), whole: whole, called: now}
}

// Whole returns the whole limit.
func (h *Holding) Whole() Limit { return h.whole }

// SetWhole changes the whole limit from now on.
func (h *Holding) SetWhole(l Limit, now time.Duration) {
	h.whole = l
	h.advance(now)
	h.fit(h.part.of(h.whole))
}

// Claim appends the claim of a call for the script. The numbers of calls grow. A division without
// clients gives its part up.
func (h *Holding) Claim(b []byte, number uint32, now time.Duration) []byte {
	h.advance(now)
	h.settle(now)
	if h.Empty() {
		h.part = Portion{}
	}
	h.fit(h.part.of(h.whole))
	demand, clients := h.need(h.whole.Rate)
	grain := One
	if h.whole.Burst >= token {
		grain = int((One*token-1)/h.whole.Burst + 1)
	}
	fills, wait := uint64(1)<<40, uint64(time.Hour)
	if h.whole.Rate > 0 {
		fills = min(fills, uint64(scale(h.whole.Burst, 1000, time.Duration(h.whole.Rate)))+1)
		wait = min(wait, uint64(scale(4*token, time.Second, time.Duration(h.whole.Rate))))
	}
	b = binary.LittleEndian.AppendUint32(b, number)
	b = binary.LittleEndian.AppendUint32(b, units(h.part.Rate, h.limit.Rate, h.goal.Rate, h.whole.Rate))
	b = binary.LittleEndian.AppendUint32(b, units(h.part.Burst, h.limit.Burst, h.goal.Burst, h.whole.Burst))
	b = binary.LittleEndian.AppendUint32(b, units(0, demand, 0, h.whole.Rate))
	b = binary.LittleEndian.AppendUint16(b, uint16(min(clients, math.MaxUint16)))
	b = binary.LittleEndian.AppendUint32(b, uint32(grain))
	b = binary.LittleEndian.AppendUint32(b, uint32((turn + time.Duration(wait)).Milliseconds()))
	return binary.LittleEndian.AppendUint64(b, fills)[:len(b)+6]
}

// units returns a used part of a whole: the part itself up to its size, more rounded up.
func units(part uint32, used, size, whole int64) uint32 {
	switch {
	case used <= size:
		return part
	case whole <= 0:
		return math.MaxUint32
	}
	return uint32(min(scale(used, One, time.Duration(whole)), math.MaxUint32-1)) + 1
}

// need returns the rate that the clients with a stream need, at most whole, and their number.
func (d *Division) need(whole int64) (rate int64, clients int) {
	for _, c := range d.clients {
		switch {
		case c.gone || c.leaving:
			continue
		case c.demand < 0:
			rate = whole
		default:
			rate = min(rate+min(c.demand, whole)/8*9, whole)
		}
		clients++
	}
	return rate, clients
}

// Answer takes the answer to the last claim, and reports whether the answer can be read and the
// call was not late. begun is the instant of the claim.
func (h *Holding) Answer(text string, begun, now time.Duration) bool {
	if len(text) != 14 {
		return false
	}
	h.called, h.processes = begun, int(binary.LittleEndian.Uint16([]byte(text[12:])))
	field := func(i int) uint32 { return binary.LittleEndian.Uint32([]byte(text[4*i : 4*i+4])) }
	h.part = Portion{field(0), field(1)}
	h.advance(now)
	h.fit(h.part.of(h.whole))
	h.level += scale(h.whole.Burst, time.Duration(field(2)), One)
	h.advance(now)
	return true
}

// Processes returns the number of processes that divided the limit at the last answer.
func (h *Holding) Processes() int { return max(h.processes, 1) }

// Wake says that the process had no time for longer than [Away]. Others may have its part. The
// caller must not call Step before the next Answer.
func (h *Holding) Wake(now time.Duration) {
	h.advance(now)
	h.settle(now)
	if now-h.called >= Dead-Call {
		h.part = Portion{}
		h.fit(h.part.of(h.whole))
	}
}
