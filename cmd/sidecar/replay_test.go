package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/race"
)

// replayed is one line of replay's JSON.
type replayed struct {
	Client     string `json:"client"`
	Timestamp  int64  `json:"timestamp"`
	Hits       int64  `json:"hits"`
	Allowed    bool   `json:"allowed"`
	Remaining  int64  `json:"remaining"`
	RetryAfter *int64 `json:"retry_after_ns"`
	ResetAfter int64  `json:"reset_after_ns"`
	Never      bool   `json:"never"`
}

// wholeTokens is section 2.5 of the semantics as it stands there, in whole time units: a second
// implementation of token_bucket_integer. The zero value is a full bucket.
type wholeTokens struct {
	used         bool
	tokens, last int64
	latest       int64 // instant of the last charge
}

// refilled returns the tokens at an instant and the mark that goes with them.
func (b wholeTokens) refilled(capacity, period, now int64) (tokens, last int64) {
	if !b.used {
		return capacity, now
	}
	refill := floor(now-b.last, capacity, period)
	switch {
	case b.tokens+refill >= capacity:
		return capacity, now
	case refill > 0:
		return b.tokens + refill, b.last + floor(refill, period, capacity)
	}
	return b.tokens, b.last
}

// floor returns x*y/z rounded down.
func floor(x, y, z int64) int64 {
	product := new(big.Int).Mul(big.NewInt(x), big.NewInt(y))
	return product.Div(product, big.NewInt(z)).Int64()
}

// take returns the bucket after a request, and the answer, which it finds by trying every number of
// hits and every instant.
func (b wholeTokens) take(q replayed, capacity, period, unit int64) (wholeTokens, replayed) {
	now := max(q.Timestamp, b.latest)
	tokens, last := b.refilled(capacity, period, now)
	if q.Allowed = q.Hits <= tokens; q.Allowed && q.Hits > 0 {
		b = wholeTokens{used: true, tokens: tokens - q.Hits, last: last, latest: now}
	}
	passes := func(hits, at int64) bool {
		tokens, _ := b.refilled(capacity, period, at)
		return hits <= tokens
	}
	for passes(q.Remaining+1, now) {
		q.Remaining++
	}
	wait := int64(0)
	for !passes(capacity, now+wait) {
		wait++
	}
	q.ResetAfter = wait * unit
	if q.Never = q.Hits > capacity; q.Never {
		return b, q
	}
	for wait = 0; !q.Allowed && !passes(q.Hits, now+wait); {
		wait++
	}
	wait *= unit
	q.RetryAfter = &wait
	return b, q
}

// TestTokenBucketIntegerCountsInTimeUnits compares replay with section 2.5 on random requests, in
// random units.
func TestTokenBucketIntegerCountsInTimeUnits(t *testing.T) {
	race.Without(t)
	units := []time.Duration{1, 7, time.Microsecond, time.Millisecond, time.Second, time.Minute, time.Hour}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 9)) //nolint:gosec // a test that can be repeated
		unit := units[r.IntN(len(units))]
		ticks := 1 + r.Int64N(100)
		if short := int64(time.Millisecond / unit); ticks < short {
			unit = time.Second // else the period is below its bound
		}
		capacity := 1 + r.Int64N(30)
		if capacity > ticks {
			capacity = ticks * (1 + r.Int64N(3)) // a whole number of tokens per unit
		}
		if r.IntN(2) == 0 {
			ticks = capacity * (1 + r.Int64N(4)) // without any rounding
		}
		compareWithWholeTokens(t, r, capacity, ticks, unit)
		if t.Failed() {
			t.Fatalf("seed %d: %d per %d units of %v", seed, capacity, ticks, unit)
		}
	}
}

// compareWithWholeTokens runs replay over random requests and compares its answers with
// wholeTokens.
func compareWithWholeTokens(t *testing.T, r *rand.Rand, capacity, ticks int64, unit time.Duration) {
	t.Helper()
	var in strings.Builder
	var want []replayed
	buckets := make(map[string]wholeTokens)
	at := r.Int64N(1000)
	for range 60 {
		at = max(0, at+r.Int64N(2*ticks/capacity+3)-1) // mostly forward
		q := replayed{Client: string(rune('a' + r.IntN(2))), Timestamp: at, Hits: r.Int64N(3)}
		if r.IntN(20) == 0 {
			q.Hits = r.Int64N(capacity + 2)
		}
		fmt.Fprintf(&in, "request %s %d %d\n", q.Client, q.Timestamp, q.Hits)
		b, known := buckets[q.Client]
		if !known {
			b.latest = at
		}
		b.latest = max(b.latest, at)
		b, q = b.take(q, capacity, ticks, int64(unit))
		buckets[q.Client] = b
		want = append(want, q)
	}
	command := newReplay()
	var out bytes.Buffer
	command.SetIn(strings.NewReader(in.String()))
	command.SetOut(&out)
	command.SetArgs([]string{
		"--algorithm", "token_bucket_integer", "--limit", strconv.FormatInt(capacity, 10), "--period", (time.Duration(ticks) * unit).String(),
		"--time-unit", unit.String(), "--output", "json",
	})
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Error(err)
		return
	}
	var got []replayed
	for decoder := json.NewDecoder(&out); decoder.More(); {
		var line replayed
		if err := decoder.Decode(&line); err != nil {
			t.Error(err)
			return
		}
		got = append(got, line)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decisions (-section 2.5 +replay):\n%s\nof:\n%s", diff, in.String())
	}
}

// TestWaitsInTimeUnitsDoNotOverflow asks for a wait of more than 292 years.
func TestWaitsInTimeUnitsDoNotOverflow(t *testing.T) {
	for _, c := range []struct{ n, tick, want time.Duration }{
		{0, time.Hour, 0}, {3, time.Hour, 3 * time.Hour}, {1<<63 - 1, 1, 1<<63 - 1}, {1<<63 - 1, 2, 1<<63 - 1}, {1 << 61, 4, 1<<63 - 1},
	} {
		if got := times(c.n, c.tick); got != c.want {
			t.Errorf("%d times %v: got %v; want %v", c.n, c.tick, got, c.want)
		}
	}
}
