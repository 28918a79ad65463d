package memstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// heldLimit returns a limit of the algorithm that holders of one hit never reach.
func heldLimit(a algorithms.Algorithm) algorithms.Limit {
	if a == algorithms.Concurrency {
		return algorithms.Limit{Algorithm: a, Requests: 1 << 30}
	}
	return algorithms.Limit{Algorithm: a, Requests: 1 << 30, Period: 365 * 24 * time.Hour}
}

// holding keeps some holders of one key: each call of next ends the oldest, and begins it again as
// the newest.
type holding struct {
	store     *Store
	begin     []store.Charge
	end       []store.Charge
	holders   []store.Holder
	decisions []algorithms.Decision
	at        int
}

func newHolding(s *Store, l algorithms.Limit, held int) *holding {
	h := &holding{store: s, decisions: make([]algorithms.Decision, 1)}
	charge := func(p algorithms.HoldPhase) []store.Charge {
		return []store.Charge{{Key: benchKey(1), Limit: l, Hits: 1, Hold: &store.Hold{Phase: p, AtMost: time.Hour}}}
	}
	h.begin, h.end = charge(algorithms.HoldBegin), charge(algorithms.HoldEnd)
	for i := range held {
		h.holders = append(h.holders, holderOf(i))
		h.begin[0].Hold.Holder = h.holders[i]
		s.TakeNow(h.begin, h.decisions)
	}
	return h
}

func (h *holding) next() {
	holder := &h.holders[h.at]
	if h.at++; h.at == len(h.holders) {
		h.at = 0
	}
	h.end[0].Hold.Holder = *holder
	h.store.TakeNow(h.end, h.decisions)
	h.begin[0].Hold.Holder = *holder
	h.store.TakeNow(h.begin, h.decisions)
}

// BenchmarkHold is one end and one begin on one key, with that many holders, beside two plain
// decisions.
func BenchmarkHold(b *testing.B) {
	for _, a := range algorithms.Algorithms() {
		for _, held := range []int{0, 10, 10_000} {
			name := fmt.Sprintf("%v/held=%d", a, held)
			if held == 0 {
				name = fmt.Sprintf("%v/plain", a)
			}
			b.Run(name, func(b *testing.B) {
				s := benchStore(b, 0)
				h := newHolding(s, heldLimit(a), max(held, 1))
				plain := []store.Charge{{Key: benchKey(1), Limit: heldLimit(a), Hits: 1}}
				b.ReportAllocs()
				for b.Loop() {
					if held > 0 {
						h.next()
					} else {
						s.TakeNow(plain, h.decisions)
						s.TakeNow(plain, h.decisions)
					}
				}
			})
		}
	}
}
