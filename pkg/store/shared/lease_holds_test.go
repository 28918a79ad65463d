package shared

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// begin makes a charge the begin of a holder.
func begin(c store.Charge) store.Charge {
	c.Hold = &store.Hold{Phase: algorithms.HoldBegin, Holder: store.HolderOf([]byte("R")), AtMost: time.Minute}
	return c
}

// ledger is a link that keeps the transactions that it is asked about.
type ledger struct {
	*link
	seen [][]store.Charge
}

func (l *ledger) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	l.seen = append(l.seen, slices.Clone(charges))
	return l.link.Take(ctx, charges, decisions)
}

// inLedger is inBubble with a ledger, and with leased hits of the key "hot".
func inLedger(t *testing.T, o setup, test func(t *testing.T, s *Store, l *ledger)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{link: &link{hub: newHub(0)}}
		o = l.parts(o)
		o.Remote = storetest.Of(l)
		s := open(t, o)
		synctest.Wait()
		warm(t, s, l.link, minute("hot", 1_000_000))
		l.seen = nil
		test(t, s, l)
	})
}

func TestTheOtherStoreDecidesEachTransactionWithAHolderAsItIs(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, s *Store, charges []store.Charge){
		"alone": func(t *testing.T, s *Store, charges []store.Charge) { take(t, s, charges...) },
		"together": func(t *testing.T, s *Store, charges []store.Charge) {
			all := []store.Transaction{{Ctx: t.Context(), Charges: charges, Decisions: make([]algorithms.Decision, len(charges))}}
			s.TakeAll(all, func([]int) {})
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inLedger(t, setup{}, func(t *testing.T, s *Store, l *ledger) {
				held := s.Stats().Leases.Held
				for range 50 {
					for _, charges := range [][]store.Charge{{begin(minute("k", 1_000_000))}, {minute("hot", 1_000_000), begin(minute("k", 1_000_000))}} {
						l.seen = nil
						take(t, s, charges)
						if len(l.seen) != 1 || len(l.seen[0]) != len(charges) {
							t.Fatalf("%d charges: the other store was asked about %v, want one question about all", len(charges), l.seen)
						}
						if got := l.seen[0][len(charges)-1].Hold; got != charges[len(charges)-1].Hold {
							t.Fatalf("the holder is %p on the way, want %p", got, charges[len(charges)-1].Hold)
						}
					}
				}
				if got := s.Stats().Leases; got.Held != held || got.Keys != 1 {
					t.Errorf("got %+v, want the lease of one key as before", got)
				}
			})
		})
	}
}

func TestNoLeaseAnswersATransactionWithAHolderAtOnce(t *testing.T) {
	inLedger(t, setup{Late: func() time.Duration { return time.Second }}, func(t *testing.T, s *Store, l *ledger) {
		s.breaker.Failures = 1000 // the breaker stays closed
		l.fail(errors.New("no answer"))
		for range 100 {
			_, _ = store.Take(t.Context(), s, []store.Charge{minute("hot", 1_000_000)}, make([]algorithms.Decision, 1))
			synctest.Wait()
		}
		overdue := s.Stats().Leases.Without
		if overdue == 0 {
			t.Fatal("no request waits for a lease: the test shows nothing")
		}
		l.asked()
		charges, decisions := []store.Charge{minute("hot", 1_000_000), begin(minute("k", 5))}, make([]algorithms.Decision, 2)
		if _, decided := s.TakeNow(charges, decisions); decided {
			t.Error("a transaction with a holder was decided at once")
		}
		_, err := store.Take(t.Context(), s, charges, decisions)
		if asked := l.asked(); err != nil || asked != 1 || s.Stats().Leases.Without != overdue {
			t.Errorf("Take: %v, after %d questions; want one, and the policies after its error", err, asked)
		}
	})
}
