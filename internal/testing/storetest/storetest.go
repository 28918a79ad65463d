// Package storetest is the contract of package store as cases that every store must pass. The tests
// of a store run Cases, each on a new store and with a clock that only the case moves.
//
// A case is a function, not a subtest, so that the caller can put it into a testing/synctest
// bubble:
//
//	for _, c := range storetest.Cases() {
//		t.Run(c.Name, func(t *testing.T) {
//			synctest.Test(t, func(t *testing.T) {
//				s := …
//				defer s.Close()
//				c.Run(t, storetest.Env{Store: s, Sleep: time.Sleep, Now: …})
//			})
//		})
//	}
//
// The concurrent and the random cases do a tenth of their work with the race detector or with
// -short.
package storetest

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Env is the environment of a case.
type Env struct {
	Store store.Store               // empty
	Sleep func(time.Duration)       // moves the store's clock; nothing else does
	Now   func() algorithms.Instant // the store's clock

	// InAdvance says that the store takes hits in advance. Concurrent requests can then be denied
	// while such hits are held for others, and a bucket gets fewer hits back. Cases that claim an
	// exact number of hits allow a quarter less, and never more.
	InAdvance bool

	// OneSize says that the store counts a large limit in other units than a small one, so that each
	// key has limits of one size.
	OneSize bool
}

// Case is one claim about a store.
type Case struct {
	Name string // the claim
	Run  func(t *testing.T, e Env)
}

// Cases returns all cases.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{singleCases(), transactionCases(), changeCases(), readCases(), concurrentCases(), modelCases(), togetherCases()} {
		all = append(all, group...)
	}
	return all
}

// HoldCases returns the cases of charges with holders.
func HoldCases() []Case {
	var all []Case
	for _, group := range [][]Case{holdCases(), holdTransactionCases(), holdReadCases(), holdRandomCases(), pairCases()} {
		all = append(all, group...)
	}
	return all
}

// LearnedCases returns the cases of keys that learn. A store that decides without the shared one
// learns nothing.
func LearnedCases() []Case {
	return []Case{
		{"costs_are_learned_as_the_algorithm_says", learnsCosts},
		{"a_key_that_learns_denies_nothing", learningDeniesNothing},
		{"random_lessons_are_decided_as_a_plain_second_store_decides_them", func(t *testing.T, e Env) { asModel(t, e, randomLessons, true) }},
	}
}

// limit returns a limit of the algorithm in a period of one minute.
func limit(a algorithms.Algorithm, requests uint32) algorithms.Limit {
	return algorithms.Limit{Algorithm: a, Requests: requests, Period: time.Minute}
}

// charge returns a charge of one hit that does not count when it is denied.
func charge(key string, l algorithms.Limit) store.Charge {
	return store.Charge{Key: []byte(key), Limit: l, Hits: 1}
}

// take applies a transaction and fails the test on an error.
func (e Env) take(t *testing.T, charges ...store.Charge) (bool, []algorithms.Decision) {
	t.Helper()
	decisions := make([]algorithms.Decision, len(charges))
	admitted, err := store.Take(t.Context(), e.Store, charges, decisions)
	if err != nil {
		t.Fatalf("Take failed: %v", err)
	}
	return admitted, decisions
}

// remaining returns how many hits would pass.
func (e Env) remaining(t *testing.T, c store.Charge) uint64 {
	t.Helper()
	c.Hits = 0
	decisions := make([]algorithms.Decision, 1)
	if err := e.Store.Peek(t.Context(), []store.Charge{c}, decisions); err != nil {
		t.Fatalf("Peek failed: %v", err)
	}
	return decisions[0].Remaining
}

// exactly reports whether a number of hits is the wanted one, see Env.InAdvance.
func (e Env) exactly(got, want int64) bool {
	return got == want || e.InAdvance && got < want && got >= want-want/4
}

// wantRemaining fails the test unless that many hits would pass.
func (e Env) wantRemaining(t *testing.T, c store.Charge, want uint64) {
	t.Helper()
	if got := e.remaining(t, c); !e.exactly(int64(got), int64(want)) {
		t.Errorf("remaining of %q = %d; want %d", c.Key, got, want)
	}
}

// wantAdmitted fails the test unless the transaction is admitted as wanted, and returns the
// decisions.
func (e Env) wantAdmitted(t *testing.T, want bool, charges ...store.Charge) []algorithms.Decision {
	t.Helper()
	got, decisions := e.take(t, charges...)
	if got != want {
		t.Errorf("Take(%d charges) admitted = %v; want %v; first decisions %+v",
			len(charges), got, want, decisions[:min(4, len(decisions))])
	}
	return decisions
}
