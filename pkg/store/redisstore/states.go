package redisstore

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// kept is a state with the limit of its last charge. A key never used has no limit.
type kept struct {
	limit   algorithms.Limit
	state   algorithms.State
	counter bool // the state is a counter's
}

// take takes hits from the state.
func (k *kept) take(l algorithms.Limit, now algorithms.Instant, hits int64, countRejected bool) (d algorithms.Decision) {
	k.state, k.limit, d = algorithms.TakeAs(k.limit, l, k.state, now, hits, countRejected)
	return d
}

// parse reads the value of a key that is charged under a limit.
func parse(value string, l algorithms.Limit) (kept, error) {
	state, limit, err := algorithms.ParseRecord(value, l)
	if err != nil {
		return kept{}, fmt.Errorf("%w: %w", errReply, err)
	}
	return kept{limit: limit, state: state}, nil
}

// recordInstant is the size of the instant that begins each record.
const recordInstant = 7

// notAhead returns the value of a key as the script takes it at an instant. A record that lies further than farthestBack ahead goes on
// from now. The count of a window becomes the count of the window of now. A bucket gains nothing.
func notAhead(value string, l algorithms.Limit, now algorithms.Instant) string {
	if len(value) < recordInstant {
		return value // parse names the mistake
	}
	var b [8]byte
	copy(b[:], value[:recordInstant])
	at, us := binary.LittleEndian.Uint64(b[:]), uint64(now/algorithms.Instant(Granularity))
	if at <= us+uint64(farthestBack/Granularity) {
		return value
	}
	moved := append(appendInt(nil, int64(us), recordInstant), value[recordInstant:]...)
	if l.Algorithm == algorithms.SlidingWindowCounter && len(moved) == recordInstant+2*5 {
		moved = fixed(moved, at, uint64(l.Period/Granularity))
	}
	return string(moved)
}

// fixed returns a record of sliding_window_counter in which the window before no longer counts. The count of the window has the
// weight at an instant instead. Instant and period are in microseconds.
func fixed(record []byte, at, period uint64) []byte {
	r := reader{rest: string(record[recordInstant:])}
	current, previous := r.uint(5), r.uint(5)
	hi, lo := bits.Mul64(previous, period-at%period)
	carried, rest := bits.Div64(hi, lo, period) // previous has 40 bits, so hi is less than any period
	if rest > 0 {
		carried++
	}
	return appendInt(appendInt(record[:recordInstant], int64(min(current+carried, 1<<40-1)), 5), 0, 5)
}

// value returns the state as the script writes it to Redis; "" for a key never used.
func (k *kept) value() string {
	if k.counter && !k.state.Unused() {
		_, count, _ := k.state.Parts()
		return strconv.FormatUint(count, 10)
	}
	return string(algorithms.AppendRecord(nil, k.limit, k.state))
}

// instant returns Unix microseconds as an instant.
func instant(us uint64) algorithms.Instant {
	return algorithms.Instant(microseconds(us))
}

// microseconds returns that many microseconds as a duration, held at the largest whole one.
func microseconds(us uint64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/uint64(Granularity))) * Granularity
}

// seenAt returns the state as the limit finds it at an instant, which is held at the last charge, and that instant in microseconds.
func (k *kept) seenAt(l algorithms.Limit, now algorithms.Instant) (us int64, value string) {
	if k.state.Unused() || k.counter {
		return int64(now) / int64(Granularity), ""
	}
	last, _, _ := k.state.Parts()
	now = max(now, last)
	seen := kept{limit: l, state: algorithms.Change(k.limit, l, k.state, now)}
	return int64(now) / int64(Granularity), seen.value()
}
