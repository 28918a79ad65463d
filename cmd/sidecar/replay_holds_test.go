package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// TestReplayDecidesHoldersAsTheStoreDoes compares replay with the store in memory, on random
// requests, begins and ends.
func TestReplayDecidesHoldersAsTheStoreDoes(t *testing.T) {
	race.Without(t)
	for _, a := range algorithms.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			for seed := range uint64(40) {
				synctest.Test(t, func(t *testing.T) { compareWithStore(t, a, seed) })
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// compareWithStore gives a store in memory and replay the same lines. Both count nanoseconds.
func compareWithStore(t *testing.T, a algorithms.Algorithm, seed uint64) {
	t.Helper()
	const atMost = 20 * time.Second
	r := rand.New(rand.NewPCG(seed, uint64(a))) //nolint:gosec // a test that can be repeated
	limit := algorithms.Limit{Algorithm: a, Requests: 20, Period: 10 * time.Second}
	args := []string{"--algorithm", a.String(), "--limit", "20", "--at-most", atMost.String(), "--time-unit", "1ns", "--output", "json"}
	if a == algorithms.Concurrency {
		limit.Period = 0
	} else {
		args = append(args, "--period", "10s")
	}
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var in strings.Builder
	var want []replayed
	for range 100 {
		time.Sleep(time.Duration(r.Int64N(4)) * time.Second)
		q := replayed{Client: string(rune('a' + r.IntN(2))), Timestamp: time.Now().UnixNano(), Hits: r.Int64N(9)}
		if r.IntN(10) == 0 {
			q.Hits = 21 // never fits
		}
		c := store.Charge{Key: []byte(q.Client), Limit: limit, Hits: q.Hits}
		holder := string(rune('r' + r.IntN(6)))
		switch phase := algorithms.HoldPhase(r.IntN(4)); {
		case phase == 0 && a != algorithms.Concurrency:
			fmt.Fprintf(&in, "request %s %d %d\n", q.Client, q.Timestamp, q.Hits)
		case phase == algorithms.HoldEnd:
			fmt.Fprintf(&in, "end %s %d %s %d\n", q.Client, q.Timestamp, holder, q.Hits)
			c.Hold = &store.Hold{Phase: phase, Holder: store.HolderOf([]byte(holder)), AtMost: atMost}
		case phase == algorithms.HoldBegun: // in its place
			fmt.Fprintf(&in, "pair %s %d %s %d\n", q.Client, q.Timestamp, holder, q.Hits)
			c.Hold = &store.Hold{
				Phase: algorithms.HoldPair, Holder: store.HolderOf([]byte(holder)), AtMost: atMost, Estimate: uint32(q.Hits), //nolint:gosec // at most 21
			}
		default:
			fmt.Fprintf(&in, "begin %s %d %s %d\n", q.Client, q.Timestamp, holder, q.Hits)
			c.Hold = &store.Hold{Phase: algorithms.HoldBegin, Holder: store.HolderOf([]byte(holder)), AtMost: atMost}
		}
		var d [1]algorithms.Decision
		if _, err := store.Take(t.Context(), s, []store.Charge{c}, d[:]); err != nil {
			t.Fatal(err)
		}
		q.Allowed, q.Remaining, q.ResetAfter = d[0].Allowed, int64(d[0].Remaining), int64(d[0].ResetAfter)
		if q.Never = !q.Allowed && q.Hits > 20; !q.Never {
			wait := int64(d[0].RetryAfter)
			q.RetryAfter = &wait
		}
		want = append(want, q)
	}
	command := newReplay()
	var out bytes.Buffer
	command.SetIn(strings.NewReader(in.String()))
	command.SetOut(&out)
	command.SetArgs(args)
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []replayed
	for decoder := json.NewDecoder(&out); decoder.More(); {
		var line replayed
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		got = append(got, line)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decisions (-store +replay):\n%s\nof:\n%s", diff, in.String())
	}
}
