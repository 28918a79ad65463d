package shared

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
)

// inAdvance reports whether a case asks so often that leases come, and claims a number of hits. Of
// a bucket that is leased the park is lacking, and hits go back less the gain since their grant.
func inAdvance(name string) bool {
	switch name {
	case "64_goroutines_on_one_key_admit_exactly_the_limit", "64_goroutines_on_crossing_pairs_admit_exactly_the_limit",
		"concurrent_charges_and_refunds_balance", "transactions_taken_together_admit_exactly_the_limit":
		return true
	}
	return false
}

func TestAStoreOfLeasesAloneKeepsTheContract(t *testing.T) {
	for _, c := range storetest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// The limits of most cases are too small for a fleet of four to lease, and a grant
				// may come between two requests or not.
				s := open(t, (&link{hub: newHub(0)}).parts(setup{Fleet: func() int { return 4 }, Denials: DefaultDenials}))
				synctest.Wait()
				c.Run(t, storetest.Env{Store: s, Sleep: time.Sleep, Now: now, InAdvance: inAdvance(c.Name)})
			})
		})
	}
}
