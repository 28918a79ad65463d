package shared

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/loglimit", "pkg/algorithms", "pkg/store"}, Third: []string{}})
}

// now is the clock of a memstore in a bubble.
func now() algorithms.Instant { return algorithms.Instant(time.Now().UnixNano()) }

func TestAHealthyPrimaryKeepsTheContractAlone(t *testing.T) {
	for _, c := range slices.Concat(storetest.Cases(), storetest.HoldCases(), storetest.CarryCases(), storetest.LearnedCases(), storetest.EscalationCases()) {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				primary := must.Get(memstore.New(memstore.Options{SweepInterval: time.Minute}))(t)
				defer primary.Close()
				r := newRig(t, setup{Remote: primary})
				synctest.Wait()
				c.Run(t, storetest.Env{Store: r, Sleep: time.Sleep, Now: now, OneSize: true})
				r.want(Closed)
				late := 0 // transactions after their deadline
				if c.Name == "an_ended_context_fails_its_own_transaction_only" {
					late = 1
				}
				if got := r.Stats(); got.Decided != (Decided{Local: uint64(late)}) || got.Failures != (Failures{}) {
					t.Errorf("stats = %+v; want %d decided without the primary", got, late)
				}
				if got := r.local.Stats().Keys; got != late {
					t.Errorf("the local store has %d keys; want %d", got, late)
				}
			})
		})
	}
}

// resetsLocally is a store whose Reset says, as it must, that only the local store was reset.
type resetsLocally struct{ *Store }

func (s resetsLocally) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	n, err := s.Store.Reset(ctx, charges)
	if errors.Is(err, errDown) {
		return n, nil
	}
	return n, errors.Join(errors.New("Reset does not wrap the reason"), err)
}

func TestTheLocalStoreKeepsTheContractWithoutThePrimary(t *testing.T) {
	for _, probe := range []struct {
		name   string
		answer error
	}{
		{"which_is_away", errDown},
		{"which_fails_though_its_probe_is_good", nil},
	} {
		for _, c := range append(storetest.Cases(), storetest.CarryCases()...) {
			t.Run(probe.name+"/"+c.Name, func(t *testing.T) {
				inBubbleAway(t, setup{}, func(r *rig) {
					t := r.t
					r.probeAnswers(probe.answer)
					c.Run(t, storetest.Env{Store: resetsLocally{r.Store}, Sleep: time.Sleep, Now: now, OneSize: true})
				})
			})
		}
	}
}

func TestNewNamesEverythingThatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Options
		want string
	}{
		{"nothing_given", Options{}, "remote: must be given\nlocal: must be given\nlogger: must be given"},
		{
			"below_the_bounds",
			Options{Remote: remote{}, Local: new(memstore.Store), Logger: slog.New(slog.DiscardHandler), Denials: -time.Second},
			"denials: -1s: must be at least 0",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := New(tt.o); err == nil || err.Error() != tt.want {
				t.Errorf("New = %v; want %s", err, tt.want)
			}
		})
	}
}

// inAdvance reports whether a case asks so often that leases come, and claims a number of hits. Of
// a bucket that is leased the park is lacking, and hits go back less the gain since their part.
func inAdvance(name string) bool {
	switch name {
	case "64_goroutines_on_one_key_admit_exactly_the_limit", "64_goroutines_on_crossing_pairs_admit_exactly_the_limit",
		"concurrent_charges_and_refunds_balance", "transactions_taken_together_admit_exactly_the_limit":
		return true
	}
	return false
}

func TestAStoreOfLeasesAloneKeepsTheContract(t *testing.T) {
	for _, c := range append(storetest.Cases(), storetest.CarryCases()...) {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// The limits of most cases are too small for a fleet of four to lease, and a part
				// may come between two requests or not.
				s := open(t, (&link{hub: newHub(0)}).parts(setup{Fleet: func() int { return 4 }, Denials: DefaultDenials}))
				synctest.Wait()
				c.Run(t, storetest.Env{Store: s, Sleep: time.Sleep, Now: now, InAdvance: inAdvance(c.Name), OneSize: true})
			})
		})
	}
}
