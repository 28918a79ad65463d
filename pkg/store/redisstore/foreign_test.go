package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// A value of another program, or a part of a state, is no count. The value stays, and other
// requests of the same batch have their answers.
func TestForeignValuesAreErrorsAndStay(t *testing.T) {
	s, _ := given(t, Options{})
	for _, a := range storetest.EveryRate() {
		for what, set := range map[string][]string{
			"a short text":  {"SET", "", "x"},
			"an empty text": {"SET", "", ""},
			"a number":      {"SET", "", "12345"},
			"13 bytes":      {"SET", "", strings.Repeat("\x01", 13)},
			"40 bytes":      {"SET", "", strings.Repeat("\x01", 40)},
			"256 bytes":     {"SET", "", strings.Repeat("\x00", 256)},
			"a long text":   {"SET", "", strings.Repeat("x", 256+20)},
			"a longer text": {"SET", "", strings.Repeat("\xff", 100_000)},
			"a hash":        {"HSET", "", "x", "y"},
			"a list":        {"RPUSH", "", "x", "y"},
			"a set":         {"SADD", "", "x"},
		} {
			t.Run(fmt.Sprint(a, "/", what), func(t *testing.T) {
				c, other := hit("k "+what, perAge(a, 10)), hit(fmt.Sprint("other ", uint8(a), what), perAge(algorithms.FixedWindow, 10))
				set[1] = s.name(&c)
				if err := command(t, s, set...).Error(); err != nil {
					t.Fatal(err)
				}
				before, _ := command(t, s, "DUMP", s.name(&c)).ToString()
				begins, ends := withHolder(algorithms.HoldBegin, string(c.Key), c.Limit, "r", 1), withHolder(algorithms.HoldEnd, string(c.Key), c.Limit, "r", 1)
				for _, charges := range [][]store.Charge{{c}, {other, c}, {c, c}, {begins}, {ends}, {begins, other}} {
					if _, err := store.Take(t.Context(), s, charges, make([]algorithms.Decision, 2)); err == nil {
						t.Errorf("Take of %d charges: no error", len(charges))
					} else if errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Take: %v, as if Redis were away", err)
					}
				}
				if err := s.Peek(t.Context(), []store.Charge{c}, make([]algorithms.Decision, 1)); err == nil {
					t.Error("Peek: no error")
				}
				if after, _ := command(t, s, "DUMP", s.name(&c)).ToString(); after != before {
					t.Errorf("it is %q now; it was %q", after, before)
				}

				// Somebody waits at the same time for another key.
				calls := []*transaction{callOf(take, other), callOf(take, c), callOf(take, other)}
				b := newBatch(s.main)
				for _, c := range calls {
					b.add(&c.call)
				}
				s.main.execute(&flight{node: s.main.queue.node(0)}, []*batch{b}, false)
				for _, c := range calls {
					<-c.wait.signal
				}
				if calls[0].err != nil || calls[2].err != nil || calls[1].err == nil {
					t.Errorf("three calls of one batch, of which the second is of that key: %v, %v, %v", calls[0].err, calls[1].err, calls[2].err)
				}
				if got := remains(t, s, other); calls[0].err == nil && got != 8 {
					t.Errorf("%d of 10 remain of the other key after 2 hits", got)
				}
				if n, err := s.Reset(t.Context(), []store.Charge{c}); n != 1 || err != nil {
					t.Errorf("Reset: %d, %v", n, err)
				}
				wants(t, true, s, c)
			})
		}
	}
}

// Redis has certainly not charged hits of such a key, so each try is as good as the first.
func TestHitsThatAForeignValueRefusesCountOnce(t *testing.T) {
	s, clock := given(t, Options{})
	for _, a := range storetest.EveryRate() {
		t.Run(a.String(), func(t *testing.T) {
			c := hit("refused", perAge(a, 100))
			c.Hits = 3
			must.Do(t, command(t, s, "HSET", s.name(&c), "x", "y").Error())
			unknown := s.Stats().UnknownHits
			s.Later(&c, clock.now(), store.Part{})
			for range 3 {
				s.sendAll()
				eventually(t, "the outbox has its answers", s.idle)
			}
			must.Do(t, command(t, s, "DEL", s.name(&c)).Error())
			s.sendAll()
			told(t, s)
			if a == algorithms.SlidingWindowLog { // a list may be written before the script fails
				return
			}
			if got := remains(t, s, c); got != 97 {
				t.Errorf("%d of 100 remain after 3 hits", got)
			}
			if got := s.Stats().UnknownHits - unknown; got != 0 {
				t.Errorf("%d hits are unknown", got)
			}
		})
	}
}

// The first begin clears the set, where holders may be left whose book Redis has evicted.
func TestAForeignValueInPlaceOfSlotsIsAnErrorAndStays(t *testing.T) {
	s, _ := given(t, Options{})
	c := begin("k", inFlight(10), "r", 5)
	name := s.name(&c)
	for _, set := range [][]string{{"SET", name, "x"}, {"HSET", name, "x", "y"}, {"RPUSH", name, "x"}} {
		if err := command(t, s, set...).Error(); err != nil {
			t.Fatal(err)
		}
		before, _ := command(t, s, "DUMP", name).ToString()
		if _, err := store.Take(t.Context(), s, []store.Charge{c}, make([]algorithms.Decision, 1)); err == nil {
			t.Errorf("%s: a begin is no error", set[0])
		}
		if after, _ := command(t, s, "DUMP", name).ToString(); after != before {
			t.Errorf("%s: it is %q now; it was %q", set[0], after, before)
		}
		if err := command(t, s, "DEL", name).Error(); err != nil {
			t.Fatal(err)
		}
	}
	wants(t, true, s, c)
}

func TestScriptThatRedisForgetsIsSentAgain(t *testing.T) {
	s, _ := given(t, Options{})
	c := hit("k", perAge(algorithms.TokenBucket, 100))
	for n := range 10 {
		wants(t, true, s, c)
		client, err := s.main.connection.Client()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Do(t.Context(), client.B().ScriptFlush().Build()).Error(); err != nil {
			t.Fatal(err)
		}
		if got, want := remains(t, s, c), uint32(99-n); got != want {
			t.Errorf("%d remain; want %d", got, want)
		}
	}
	cluster := clustered(t, Options{})
	for n := range 30 {
		if n%10 == 0 {
			for _, node := range sharedCluster(t).Nodes[:3] {
				if _, err := node.Do(t.Context(), "SCRIPT", "FLUSH"); err != nil {
					t.Fatal(err)
				}
			}
		}
		wants(t, true, cluster, hit(fmt.Sprint(n), c.Limit), hit(fmt.Sprint("and ", n), c.Limit))
	}
}

func TestPeriodsThatAreNoWholeMicrosecondsAreRefused(t *testing.T) {
	s, _ := given(t, Options{})
	good, bad := hit("k", perAge(algorithms.FixedWindow, 10)), hit("k", perAge(algorithms.FixedWindow, 10))
	bad.Limit.Period = time.Second + 1
	for _, charges := range [][]store.Charge{{bad}, {good, bad}, {bad, good}} {
		d := make([]algorithms.Decision, 2)
		if _, err := store.Take(t.Context(), s, charges, d); !errors.Is(err, store.ErrLimit) {
			t.Errorf("Take: %v; want ErrLimit", err)
		}
		if err := s.Peek(t.Context(), charges, d); !errors.Is(err, store.ErrLimit) {
			t.Errorf("Peek: %v; want ErrLimit", err)
		}
		if _, err := s.Reset(t.Context(), charges); !errors.Is(err, store.ErrLimit) {
			t.Errorf("Reset: %v; want ErrLimit", err)
		}
	}
	if got := remains(t, s, good); got != 10 {
		t.Errorf("%d of 10 remain", got)
	}
}

func TestClosedStoreSaysSo(t *testing.T) {
	for name, urls := range map[string][]string{
		"single":  urlOf("redis", shared(t).Address()),
		"cluster": urlOf("redis-cluster", sharedCluster(t).Addresses()...),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, urls, Options{})
			l := perAge(algorithms.FixedWindow, 10)
			s.Close()
			s.Close()
			d := make([]algorithms.Decision, 3)
			for _, charges := range [][]store.Charge{{hit("a", l)}, {hit("a", l), hit("b", l), hit("c", l)}} {
				if _, err := store.Take(t.Context(), s, charges, d); !errors.Is(err, ErrUnavailable) {
					t.Errorf("Take: %v; want ErrUnavailable", err)
				}
				if err := s.Peek(t.Context(), charges, d); !errors.Is(err, ErrUnavailable) {
					t.Errorf("Peek: %v; want ErrUnavailable", err)
				}
				if _, err := s.Reset(t.Context(), charges); err == nil {
					t.Error("Reset: no error")
				}
			}
		})
	}
}

// Close while requests are on their way: each has an answer or an error, and none hangs.
func TestCloseDuringRequestsLeavesNoneWithoutAnswer(t *testing.T) {
	for range 10 {
		look, _ := given(t, Options{})
		s := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: look.main.prefix})
		c := hit("k", perAge(algorithms.FixedWindow, 1_000_000))
		admitted := make(chan struct{}, 100_000)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			for range 200 {
				<-admitted
			}
			s.Close()
		}()
		storm(8, 200, func(int) {
			if ok, err := store.Take(t.Context(), s, []store.Charge{c}, make([]algorithms.Decision, 1)); ok {
				admitted <- struct{}{}
			} else if err == nil {
				t.Error("denied")
			}
		})
		<-closed
		if got := count(t, look, c); got < 200 {
			t.Errorf("Redis counts %d hits of at least 200", got)
		}
	}
}

// Hits of a log are told in a run of the script that no value of another program can end. Otherwise
// they would be told again, and count twice.
func TestAForeignValueDoesNotChargeTheHitsOfALogTwice(t *testing.T) {
	s, clock := given(t, Options{})
	c, other := hit("k", perAge(algorithms.SlidingWindowLog, 10)), hit("other", perAge(algorithms.FixedWindow, 10))
	must.Do(t, command(t, s, "SET", s.name(&other), "x").Error())
	var f flight
	f.node, f.current = s.main.queue.node(0), map[uint16]*batch{}
	for _, c := range []store.Charge{c, other} {
		s.in(c.Key, func(b *owed.Book) { // before the outbox looks
			b.Add(&c, owed.Late{At: clock.now()})
			for _, e := range b.Of(c.Key, s.clocks()) {
				f.calls = append(f.calls, &s.telling(b.Tell(e, s.clocks())).call)
			}
		})
	}
	if len(f.calls) != 2 {
		t.Fatalf("got %d calls, want 2", len(f.calls))
	}
	s.main.execute(&f, f.load(), false)
	if got := remains(t, s, c); got != 9 {
		t.Errorf("%d of 10 remain after one hit, want 9", got)
	}
}
