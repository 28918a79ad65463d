package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestHitsDecidedElsewhereAreChargedOnceTheOutcomeIsKnown(t *testing.T) {
	for _, test := range []struct {
		name    string
		trip    time.Duration // half of it is the way to Redis; callers wait for 10 ms
		applied bool
		fails   func(f *far, s *Store) // while the request is under way
		unknown bool
	}{
		{"applied, and answered late", 16 * time.Millisecond, true, nil, false},
		{"refused as late", 60 * time.Millisecond, false, nil, false},
		{"connection lost", 100 * time.Millisecond, false, func(f *far, _ *Store) { f.conn.Close() }, true},
	} {
		for _, early := range []bool{true, false} {
			for _, together := range []bool{false, true} {
				for _, hits := range []int64{0, 1, 3, -2} {
					t.Run(fmt.Sprintf("%s, told before %t, together %t, %d hits", test.name, early, together, hits), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							f := farBy(time.Millisecond)
							s := away(t, f, Options{})
							c := hit("k", perAge(algorithms.FixedWindow, 10))
							taking(t, s, c) // teaches the clock
							s.miss()        // so that no caller flies itself
							f.hang(test.trip - time.Millisecond)
							one := store.Transaction{Ctx: t.Context(), Charges: []store.Charge{c}, Decisions: make([]algorithms.Decision, 1)}
							if together {
								all := []store.Transaction{one}
								s.TakeAll(all, func([]int) {})
								one = all[0]
							} else {
								_, one.Err = store.Take(one.Ctx, s, one.Charges, one.Decisions)
							}
							u, is := errors.AsType[store.Unanswered](one.Err)
							if !is || !errors.Is(one.Err, context.DeadlineExceeded) {
								t.Fatalf("%v: %T", one.Err, one.Err)
							}
							tell := func() { u.Instead([]int64{hits}, nil); c.Key[0] = 'x' }
							if early {
								tell()
								if owed := s.owedOf(&store.Charge{Key: []byte("k"), Limit: c.Limit}, s.Now(algorithms.Limit{})); owed != max(hits, 0) {
									t.Errorf("%d hits are owed while the outcome is open; want %d", owed, max(hits, 0))
								}
							}
							if test.fails != nil {
								test.fails(f, s)
							}
							f.hang(0)
							time.Sleep(test.trip)
							if !early {
								tell()
							}
							time.Sleep(3 * time.Second)
							want := hits
							switch {
							case test.applied:
								want = hits - 1
							case test.unknown:
								want = max(hits, 0)
							}
							if got := f.told.Load(); got != want {
								t.Errorf("%d hits were charged later; want %d", got, want)
							}
							stats := s.Stats()
							if test.unknown != (stats.UnknownHits > 0) || stats.LostHits != 0 || stats.OwedKeys != 0 {
								t.Errorf("%+v", stats)
							}
						})
					})
				}
			}
		}
	}
}

func TestHitsOfARequestThatWasNeverSentAreChargedLater(t *testing.T) {
	for _, together := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := farBy(time.Millisecond)
			s := away(t, f, Options{})
			c := hit("k", perAge(algorithms.FixedWindow, 10))
			ctx, cancel := context.WithDeadline(t.Context(), time.Now())
			defer cancel()
			all := []store.Transaction{{Ctx: ctx, Charges: []store.Charge{c}, Decisions: make([]algorithms.Decision, 1)}}
			if together {
				s.TakeAll(all, func([]int) {})
			} else {
				_, all[0].Err = store.Take(ctx, s, all[0].Charges, all[0].Decisions)
			}
			u, is := errors.AsType[store.Unanswered](all[0].Err)
			if !is {
				t.Fatalf("%v: %T", all[0].Err, all[0].Err)
			}
			u.Instead([]int64{4}, nil)
			time.Sleep(time.Second)
			if got := f.told.Load(); got != 4 {
				t.Errorf("%d hits were charged later; want 4", got)
			}
		})
	}
}

// Instead and the end of the call meet in any order.
func TestInsteadAndTheEndOfACallMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := farBy(time.Millisecond)
		s := away(t, f, Options{})
		c := hit("k", perAge(algorithms.FixedWindow, 10))
		taking(t, s, c)
		s.miss() // no caller flies, so that each outcome becomes known
		const requests = 2000
		var waiting sync.WaitGroup
		f.hang(19 * time.Millisecond)
		for range requests {
			waiting.Go(func() {
				_, err := store.Take(t.Context(), s, []store.Charge{c}, make([]algorithms.Decision, 1))
				u, is := errors.AsType[store.Unanswered](err)
				if !is {
					t.Errorf("%v: %T", err, err)
					return
				}
				time.Sleep(10 * time.Millisecond) // the answer comes at the same moment
				u.Instead([]int64{2}, nil)
			})
		}
		waiting.Wait()
		f.hang(0)
		time.Sleep(5 * time.Second)
		if got := f.told.Load(); got != requests && got != 2*requests {
			t.Errorf("%d hits were charged later; want 1 or 2 of each of %d requests", got, requests)
		}
		if stats := s.Stats(); stats.OwedKeys != 0 || stats.LostHits != 0 || stats.UnknownHits != 0 {
			t.Errorf("%+v", stats)
		}
	})
}
