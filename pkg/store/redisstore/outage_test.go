package redisstore

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// apart is a process that decides by its part of a limit, without Redis: each hit costs as many
// hits as there are processes. The bucket, window or log is the process's own view of the key.
type apart struct {
	*Store

	n     int64
	state algorithms.State
	log   algorithms.Log
}

// take decides a hit, and has it carried back.
func (a *apart) take(c store.Charge, now algorithms.Instant) bool {
	var d algorithms.Decision
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		d = a.log.Take(c.Limit, now, a.n, false)
	} else {
		a.state, d = algorithms.Take(c.Limit, a.state, now, a.n, false)
	}
	if d.Allowed {
		own := time.Duration(a.n) * c.Limit.Period / time.Duration(c.Limit.Requests)
		a.Later(&c, now, store.Part{Full: now.Add(d.ResetAfter) - algorithms.Instant(own), Mine: 1, Of: uint32(a.n)})
	}
	return d.Allowed
}

// quiet keeps the outbox of a store from sending by itself.
func quiet(s *Store) {
	s.outbox.mu.Lock()
	defer s.outbox.mu.Unlock()
	s.outbox.next = time.Now().Add(time.Hour)
}

// Hits that are carried back after an outage cost as much as hits charged at their own instants. A
// bucket may lose its gain between the first process that tells and the last. A process may charge
// a hit too much, and in a log the hits of one slot of time.
func TestCarriedHitsCostAsIfChargedAtTheirInstants(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		for seed := range uint64(12) {
			t.Run(fmt.Sprint(a, "_", seed), func(t *testing.T) {
				r := newRand(seed)
				n := 1 + r.IntN(4)
				all, clock := ships(t, n, urlOf("redis", shared(t).Address()))
				l := algorithms.Limit{Algorithm: a, Requests: uint32(10 + r.IntN(40)), Period: 4 * time.Second}
				if a == algorithms.TokenBucket {
					l.Burst = l.Requests + r.Uint32N(100)
				}
				told, atOnce := hit("told", l), hit("at once", l)
				var processes []*apart
				for _, s := range all {
					quiet(s)
					p := &apart{Store: s, n: int64(n)}
					processes = append(processes, p)
				}
				for range r.IntN(int(l.Capacity())) { // Redis and all processes know of these
					wants(t, true, all[0], told)
					wants(t, true, all[0], atOnce)
					for _, p := range processes {
						if p.state, _ = algorithms.Take(l, p.state, clock.now(), 1, false); a == algorithms.SlidingWindowLog {
							p.log.Take(l, clock.now(), 1, false)
						}
					}
				}
				usual := l.Period / time.Duration(l.Requests)
				for i := range 30 + r.IntN(200) { // the client stays below its rate
					clock.sleep(usual + time.Duration(r.Int64N(int64(usual))))
					if processes[i%n].take(told, clock.now()) {
						wants(t, true, all[0], atOnce)
					}
				}
				began := clock.now()
				for _, i := range r.Perm(n) {
					all[i].sendAll()
					eventually(t, "the hits are told", func() bool { return all[i].idle() && all[i].Stats().OwedKeys == 0 })
					clock.sleep(usual / 8)
				}
				late := uint32(0)
				if a == algorithms.TokenBucket || a == algorithms.TokenBucketInteger {
					late = 1 + uint32(math.Ceil(float64(clock.now()-began)/float64(usual)))
				}
				for range 20 {
					got, want := remains(t, all[0], told), remains(t, all[0], atOnce)
					if got > want+late {
						t.Fatalf("%+v, %d processes: %d remain, and %d of hits that were charged at once", l, n, got, want)
					}
					slack := uint32(n) + 1
					if a == algorithms.SlidingWindowLog {
						slack += l.Requests/32 + 1
					}
					if got+slack < want {
						t.Fatalf("%+v, %d processes: only %d remain, and %d of hits that were charged at once", l, n, got, want)
					}
					clock.sleep(usual / 2)
				}
			})
		}
	}
}

// A client that sends half of its rate during an outage, and goes on after it, is never denied.
func TestAClientBelowItsRateIsNotDeniedAfterAnOutage(t *testing.T) {
	for _, n := range []int{1, 4} {
		for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.TokenBucketInteger} {
			all, clock := ships(t, n, urlOf("redis", shared(t).Address()))
			l := algorithms.Limit{Algorithm: a, Requests: 100, Period: 10 * time.Second}
			c := hit(fmt.Sprint("k", n), l)
			var processes []*apart
			for _, s := range all {
				quiet(s)
				processes = append(processes, &apart{Store: s, n: int64(n)})
			}
			for i := range 5 * 45 {
				if !processes[i%n].take(c, clock.now()) {
					t.Fatalf("%v: hit %d is denied during the outage", a, i)
				}
				clock.sleep(200 * time.Millisecond)
			}
			for i, s := range all {
				s.sendAll()
				if got := remains(t, s, c); got < 100-uint32(i)-1 {
					t.Errorf("%v: %d of 100 remain after an outage at half of the rate, told by %d of %d", a, got, i+1, n)
				}
			}
			for range 100 {
				wants(t, true, all[0], c)
				clock.sleep(200 * time.Millisecond)
			}
		}
	}
}

// Other processes ask Redis before this one has told its hits. The hits leave the log all the same
// when a period has passed since each.
func TestCarriedHitsOfALogKeepTheirAgesBehindNewerHits(t *testing.T) {
	for _, newer := range []int{0, 1, 40} {
		s, clock := given(t, Options{})
		quiet(s)
		l := algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: 100, Period: 32 * time.Second}
		c := hit("k", l)
		wants(t, true, s, c) // goes first
		first := clock.now()
		clock.sleep(time.Second)
		for range 10 {
			s.Later(&c, clock.now(), store.Part{})
			clock.sleep(2 * time.Second)
		}
		later := c
		later.Key = []byte("k") // as by another process: the hits of this one are still owed
		other := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: s.main.prefix})
		clock.drives(other)
		for range newer {
			wants(t, true, other, later)
			clock.sleep(time.Millisecond)
		}
		s.sendAll()
		eventually(t, "the hits are told", func() bool { return s.idle() && s.Stats().OwedKeys == 0 })
		for n := range 10 {
			at := first.Add(l.Period + time.Duration(2*n)*time.Second)
			if wait := at.Sub(clock.now()); wait > 0 {
				clock.sleep(wait)
			}
			if got, want := remains(t, s, c), 100-uint32(newer)-uint32(max(0, 10-n)); got != want {
				t.Errorf("%d newer hits: %v after the first hit %d of 100 remain, want %d", newer, clock.now().Sub(first), got, want)
			}
		}
	}
}
