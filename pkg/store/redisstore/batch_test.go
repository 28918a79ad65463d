package redisstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// run applies calls in one batch and returns them in the order in which it applied them.
func run(t *testing.T, s *Store, calls ...*transaction) []*transaction {
	t.Helper()
	b := newBatch(s.main)
	for _, c := range calls {
		c.where, c.outbox, c.wait = location{server: s.main}, s.outbox, newWait()
		b.add(&c.call)
	}
	var order []*transaction
	for i := range b.all {
		for c := b.all[i].first; c != nil; c = c.next {
			one, _ := c.owner.(*transaction)
			order = append(order, one)
		}
	}
	s.main.execute(&flight{node: s.main.queue.node(0)}, []*batch{b}, false)
	for _, c := range order {
		<-c.wait.signal
		if c.err != nil {
			t.Fatal(c.err)
		}
	}
	return order
}

// dump returns the value of a charge's key in Redis.
func dump(t *testing.T, s *Store, c *store.Charge) string {
	t.Helper()
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		list, _ := command(t, s, "LRANGE", s.name(c), "0", "-1").AsStrSlice()
		return strings.Join(list, " ")
	}
	raw, _ := command(t, s, "GET", s.name(c)).ToString()
	return raw
}

// callOf returns a call of copies of charges.
func callOf(a action, charges ...store.Charge) *transaction {
	c := new(transaction)
	c.set(a, 0, 0, charges)
	c.owner, c.wait = c, newWait()
	return c
}

// randomCalls returns calls about few keys, of which many are equal.
func randomCalls(r *rand.Rand, all []family, n int) []*transaction {
	var calls []*transaction
	for len(calls) < n {
		charges := randomCharges(r, all, nil)
		k := take
		switch {
		case len(charges) == 1 && r.IntN(6) == 0:
			k = peek
		case r.IntN(6) == 0:
			k = reserve
		}
		for range 1 + r.IntN(5)*r.IntN(2) {
			calls = append(calls, callOf(k, charges...))
		}
	}
	r.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	return calls
}

// Equal requests are combined, and all of a batch share a read and a write of each key. Nobody sees
// it.
func TestCallsOfOneBatchAreAnsweredAsOneAfterAnother(t *testing.T) {
	together, apart := newClock(), newClock()
	one := open(t, urlOf("redis", shared(t).Address()), Options{})
	many := open(t, urlOf("redis", shared(t).Address()), Options{})
	one.given, many.given = together.now, apart.now
	rounds := race.Scale(150)
	for seed := range rounds {
		r := newRand(uint64(seed))
		together.at.Store(newClock().at.Load())
		apart.at.Store(newClock().at.Load())
		all := families(r, fmt.Sprint("batch ", seed), 1+r.IntN(4))
		for round := range 4 {
			order := run(t, one, randomCalls(r, all, 1+r.IntN(30))...)
			for i, c := range order {
				same := callOf(c.action, c.charges...)
				run(t, many, same)
				if c.admitted != same.admitted || !slices.Equal(c.decisions, same.decisions) {
					t.Fatalf("seed %d, round %d, call %d of %d, action %d, %+v:\nadmitted %v %+v\nalone    %v %+v",
						seed, round, i, len(order), c.action, c.charges, c.admitted, c.decisions, same.admitted, same.decisions)
				}
			}
			for _, f := range all {
				c := store.Charge{Key: []byte(f.key), Limit: f.limits[0]}
				if x, y := dump(t, one, &c), dump(t, many, &c); x != y {
					t.Fatalf("seed %d, round %d: the state of %+v is %x, alone %x", seed, round, c, x, y)
				}
			}
			last := order[len(order)-1]
			pause := randomPause(r, last.charges[0].Limit, last.decisions[0], together.now())
			together.sleep(pause)
			apart.sleep(pause)
		}
	}
}

// FuzzAnswer: whatever comes back as the script's answer, a batch says what is wrong with it and
// does not panic.
func FuzzAnswer(f *testing.F) {
	at := store.Charge{Key: []byte("k"), Hits: 1}
	var charges []store.Charge
	for _, a := range storetest.EveryRate() {
		at.Limit = algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Second}
		charges = append(charges, at)
	}
	batchOf := func(which uint8) (b *batch, n int) {
		s := unconnected(names{prefix: "p", counters: Counters{
			Name: func(dst, key []byte) ([]byte, bool) { return append(dst, key...), string(key) == "c_" },
		}})
		b = newBatch(s.main)
		for i := range charges {
			if which&(1<<i) != 0 {
				b.add(&callOf(action(i%3), charges[i]).call)
				b.add(&callOf(take, charges[i]).call)
			}
		}
		if which&(1<<5) != 0 {
			b.add(&callOf(take, charges...).call)
			b.add(&callOf(reserve, charges[:3]...).call)
		}
		if which&(1<<6) != 0 {
			change := callOf(correct, charges[2], charges[0])
			change.fixes = []*fix{{Fix: owed.Fix{Left: "?"}}, nil}
			b.add(&change.call)
		}
		if which&(1<<7) != 0 {
			counted := charges[0]
			counted.Key = []byte("c_")
			b.add(&callOf(take, counted).call)
			b.add(&callOf(reserve, charges[0], counted, counted).call)
		}
		return b, len(b.all)
	}
	for which := range uint8(255) {
		f.Add(which, make([]byte, int(which)*3))
		f.Add(which, []byte{late, 1, 2, 3, 4, 5, 6, 7, 8})
	}
	f.Fuzz(func(t *testing.T, which uint8, reply []byte) {
		b, n := batchOf(which)
		if n == 0 {
			return
		}
		if _, _, err := b.finish(string(reply)); err != nil {
			b.end(err, false)
		} else {
			b.end(nil, false)
		}
	})
}
