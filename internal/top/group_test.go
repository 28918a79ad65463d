package top

import "testing"

// TestTheKeysOfAQuietGroupStayBesideABusyOne has a busy group of many keys, each of which has more
// hits than any key of the quiet group.
func TestTheKeysOfAQuietGroupStayBesideABusyOne(t *testing.T) {
	const places, busyKeys, quietKeys, slices, each = 104, 1000, 10, 18, 20
	var loud, quiet Group
	var hits [2]uint64
	random := Random(1)
	s := NewTracker(places, nil)
	counts := make(map[uint64]uint64)
	hit := func(g *Group, n int) {
		h := Hit{Hash: hashOf(n), Hits: 1, Group: g}
		counts[h.Hash]++
		s.hit(h, &random, n)
	}
	for slice := range slices {
		for n := range busyKeys * each {
			hit(&loud, n%busyKeys)
			hits[0]++
			if n%(busyKeys*each/quietKeys) == 0 { // once in a slice for each key
				hit(&quiet, busyKeys+n/(busyKeys*each/quietKeys))
				hits[1]++
			}
		}
		Balance([]*Group{&loud, &quiet}, hits[:])
		s.Rotate()
		if loud.weigh() != 1 || slice > 0 && quiet.weigh() != maxGroupWeight {
			t.Fatalf("slice %d: a hit of the busy group weighs %d, of the quiet one %d; want 1 and %d", slice, loud.weigh(), quiet.weigh(), maxGroupWeight)
		}
	}
	found := make(map[uint64]Key)
	for _, k := range s.Keys(Minute) {
		found[k.Hash] = k
	}
	for n := range quietKeys {
		if k, ok := found[hashOf(busyKeys+n)]; !ok || k.Hits+k.HitsError < perMinute-1 {
			t.Errorf("key %d of the quiet group: got %+v, tracked %v; want %d hits", n, k, ok, perMinute-1)
		}
	}
	busyOnes := 0
	for _, k := range found {
		if counts[k.Hash] > slices {
			busyOnes++
		}
	}
	if busyOnes < places/2 {
		t.Errorf("%d keys of the busy group are tracked; want at least half of the %d places", busyOnes, places)
	}
}

func TestGroupsWithLikeTrafficWeighTheSame(t *testing.T) {
	groups := []*Group{{}, {}, {}, nil}[:3]
	for n := range uint64(30) {
		Balance(groups, []uint64{n * 100, n * 90, 0})
	}
	if a, b := groups[0].weigh(), groups[1].weigh(); a != 1 || b != 1 {
		t.Errorf("hits weigh %d and %d; want 1 and 1", a, b)
	}
	if got := groups[2].weigh(); got != maxGroupWeight {
		t.Errorf("a first hit of a silent group weighs %d; want %d", got, maxGroupWeight)
	}
	Balance(groups, []uint64{0, 0, 0}) // counts that begin anew
	if groups[0].recent > 1100 {
		t.Errorf("a group has %d recent hits; want no hits below zero", groups[0].recent)
	}
}

// TestRandomKeysOfAQuietGroupLeaveTheKeysOfABusyOne has clients that find a quiet rule, and send
// each request with another key.
func TestRandomKeysOfAQuietGroupLeaveTheKeysOfABusyOne(t *testing.T) {
	const busyKeys, perSlice = 200, 1000
	random, traffic := Random(1), newZipf(busyKeys, 1)
	for _, flood := range []int{1000, 5000, 20_000} {
		var groups [2]Group
		totals := make([]uint64, 2)
		s := NewTracker(busyKeys, nil)
		hit := func(group, n int) {
			totals[group]++
			s.hit(Hit{Hash: hashOf(n), Hits: 1, Group: &groups[group]}, &random, n)
		}
		for range perMinute {
			for range perSlice {
				hit(0, traffic.draw())
			}
			hit(1, busyKeys)
			Balance([]*Group{&groups[0], &groups[1]}, totals)
			s.Rotate()
		}
		for n := range flood {
			hit(1, busyKeys+1+n)
		}
		tracked := make(map[int]bool)
		for _, k := range s.Keys(Minute) {
			tracked[numberOf(k.Text)] = true
		}
		for n := range 40 { // the keys with the most hits, of about 12000 in the minute
			if !tracked[n] {
				t.Errorf("after %d requests with random keys the key %d of the busy group is gone", flood, n)
			}
		}
	}
}
