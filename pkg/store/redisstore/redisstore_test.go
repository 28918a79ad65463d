package redisstore

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
)

func TestRedisstoreKeepsTheContract(t *testing.T) {
	contract(t, urlOf("redis", shared(t).Address()), Options{}, 0)
}

func TestRedisstoreKeepsTheContractInACluster(t *testing.T) {
	contract(t, urlOf("redis-cluster", sharedCluster(t).Addresses()...), Options{}, 0, carryCases()...) // two keys lie in two slots
}

// All limits of a key lie in one slot, as package descriptors names keys.
func TestRedisstoreKeepsTheContractWithAKeyInOneSlotOfACluster(t *testing.T) {
	contract(t, urlOf("redis-cluster", sharedCluster(t).Addresses()...), Options{
		HashTag: func(key []byte) []byte {
			base, _, _ := bytes.Cut(key, []byte("#"))
			return base
		},
	}, 0, // a denied request with keys in two slots stays counted under the limits before
		"random_changes_of_limits_are_decided_as_a_plain_second_store_decides_them")
}

func TestRedisstoreKeepsTheContractInOneSlotOfACluster(t *testing.T) {
	contract(t, urlOf("redis-cluster", sharedCluster(t).Addresses()...), Options{
		HashTag: func([]byte) []byte { return []byte("edge}") },
	}, 0)
}

func TestRedisstoreKeepsTheContractWithDenialsRemembered(t *testing.T) {
	// In that case other processes use a limit for longer than its successors expect.
	contract(t, urlOf("redis", shared(t).Address()), Options{}, time.Hour,
		"random_changes_of_limits_are_decided_as_a_plain_second_store_decides_them")
}

// carryCases returns the names of cases, for stores that keep the states of two limits in two
// places.
func carryCases() (names []string) {
	for _, c := range storetest.CarryCases() {
		names = append(names, c.Name)
	}
	return names
}

// contract runs the cases of every store but some on fresh keys, with a clock that stands still but
// where a case moves it.
func contract(t *testing.T, urls []string, o Options, maxAge time.Duration, but ...string) {
	t.Helper()
	contractOf(t, slices.Concat(storetest.Cases(), storetest.HoldCases(), storetest.CarryCases(), storetest.LearnedCases(), storetest.EscalationCases()), urls, o, maxAge, but...)
}

// contractOf is contract for some cases.
func contractOf(t *testing.T, cases []storetest.Case, urls []string, o Options, maxAge time.Duration, but ...string) {
	t.Helper()
	for _, c := range cases {
		if slices.Contains(but, c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			clock := newClock()
			o := o
			if o.Counters.Name != nil {
				o.Counters = counted(fresh(t))
			}
			s := open(t, urls, o)
			clock.drives(s)
			c.Run(t, storetest.Env{Store: front(t, s, maxAge), Sleep: clock.sleep, Now: clock.now})
		})
	}
}
