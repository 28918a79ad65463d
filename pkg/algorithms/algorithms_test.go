package algorithms

import (
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Std:   []string{"cmp", "errors", "fmt", "math", "math/bits", "slices", "sort", "strings", "sync/atomic", "time"},
		Third: []string{},
	})
}

func TestEveryAlgorithmIsNamedAsInRuleFiles(t *testing.T) {
	want := []string{"fixed_window", "token_bucket", "sliding_window_log", "sliding_window_counter", "token_bucket_integer", "concurrency"}
	var got []string
	for _, a := range Algorithms() {
		got = append(got, a.String())
		if parsed, err := ParseAlgorithm(a.String()); parsed != a || err != nil {
			t.Errorf("ParseAlgorithm(%q) = %v, %v; want %v", a.String(), parsed, err, a)
		}
		if newModel(a) == nil && a != Concurrency {
			t.Errorf("%v has no reference implementation", a)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names, in the order of the stored numbers 1, 2, … (-want +got):\n%s", diff)
	}
	if got := Names(); got != strings.Join(want, ", ") {
		t.Errorf("Names() = %q", got)
	}
}

func TestOnlyConcurrencyHasNoPeriod(t *testing.T) {
	for _, a := range Algorithms() {
		rate := slices.Contains(RateAlgorithms(), a)
		if err := (Limit{Algorithm: a, Requests: 1}).Validate(); (err == nil) == rate {
			t.Errorf("%v without a period: got %v; want a mistake: %v", a, err, rate)
		}
		if rate == (a == Concurrency) {
			t.Errorf("RateAlgorithms has %v: %v", a, rate)
		}
	}
}

func TestParseAlgorithmSaysWhatThereIs(t *testing.T) {
	for _, name := range []string{"", "Token_Bucket", "leaky_bucket", "algorithm(1)"} {
		a, err := ParseAlgorithm(name)
		if a != 0 || err == nil || !strings.Contains(err.Error(), Names()) {
			t.Errorf("ParseAlgorithm(%q) = %v, %v; want an error with all names", name, a, err)
		}
	}
	for name, hint := range map[string]string{
		"leaky_bucket": "burst: 1", "Leaky-Bucket": "burst: 1", "gcra": "token_bucket gives the same", "GCRA": "token_bucket gives the same",
		"sliding_window": "sliding_window_log is exact",
	} {
		if _, err := ParseAlgorithm(name); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("ParseAlgorithm(%q): got %v, want a hint with %q", name, err, hint)
		}
	}
	if got, want := Algorithm(200).String(), "algorithm(200)"; got != want {
		t.Errorf("got %q; want %q", got, want)
	}
}

func TestValidateNamesEverythingThatIsWrong(t *testing.T) {
	tests := []struct {
		name  string
		limit Limit
		want  []string // one per mistake: the field that its text starts with
	}{
		{name: "smallest", limit: Limit{Algorithm: FixedWindow, Period: MinPeriod}},
		{name: "largest", limit: Limit{Algorithm: TokenBucket, Requests: math.MaxUint32, Period: MaxPeriod, Extra: Extra{Burst: math.MaxUint32}}},
		{name: "ten_years", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: 87600 * time.Hour}},
		{name: "zero_value", want: []string{"algorithm", "period"}},
		{name: "too_short", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: MinPeriod - 1}, want: []string{"period"}},
		{name: "too_long", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: MaxPeriod + 1}, want: []string{"period"}},
		{name: "negative", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: math.MinInt64}, want: []string{"period"}},
		{name: "burst_of_a_window", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: time.Second, Extra: Extra{Burst: 1}}, want: []string{"burst"}},
		{name: "burst_of_whole_tokens", limit: Limit{Algorithm: TokenBucketInteger, Requests: 1, Period: time.Second, Extra: Extra{Burst: 1}}, want: []string{"burst"}},
		{name: "burst_of_a_ban", limit: Limit{Algorithm: TokenBucket, Period: time.Second, Extra: Extra{Burst: 1}}, want: []string{"burst"}},
		{name: "concurrency", limit: Limit{Algorithm: Concurrency, Requests: 1}},
		{name: "concurrency_that_bans", limit: Limit{Algorithm: Concurrency}},
		{name: "period_of_concurrency", limit: Limit{Algorithm: Concurrency, Requests: 1, Period: time.Second}, want: []string{"period"}},
		{name: "burst_of_concurrency", limit: Limit{Algorithm: Concurrency, Requests: 1, Extra: Extra{Burst: 1}}, want: []string{"burst"}},
		{name: "all_at_once", limit: Limit{Algorithm: 99, Extra: Extra{Burst: 1}}, want: []string{"algorithm", "period", "burst", "burst"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			if err := tt.limit.Validate(); err != nil {
				for line := range strings.Lines(err.Error()) {
					field, _, _ := strings.Cut(line, ":")
					got = append(got, field)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Validate of %+v (-want +got):\n%s", tt.limit, diff)
			}
		})
	}
}

func TestCapacityIsTheBurstOfATokenBucketOnly(t *testing.T) {
	for _, a := range RateAlgorithms() {
		want := uint64(3)
		if a == TokenBucket {
			want = 7
		}
		if got := (Limit{Algorithm: a, Requests: 3, Extra: Extra{Burst: 7}}).Capacity(); got != want {
			t.Errorf("%v: capacity %d; want %d", a, got, want)
		}
	}
	if got := (Limit{Algorithm: TokenBucket, Requests: 3}).Capacity(); got != 3 {
		t.Errorf("no burst: capacity %d; want that of requests, 3", got)
	}
}

func TestInstantsAreHeldAtTheEndsOfTime(t *testing.T) {
	const first, last = Instant(math.MinInt64), Instant(math.MaxInt64)
	if got := last.Add(1); got != last {
		t.Errorf("last.Add(1) = %d; want %d", got, last)
	}
	if got := first.Add(math.MaxInt64); got != -1 {
		t.Errorf("first.Add(292 years) = %d; want -1", got)
	}
	for _, tt := range []struct {
		from Instant
		ns   uint64
		want Instant
	}{{first, math.MaxUint64, last}, {first, math.MaxUint64 - 1, last - 1}, {0, math.MaxInt64, last}, {1, math.MaxInt64, last}, {-5, 5, 0}} {
		if got := tt.from.after(tt.ns); got != tt.want {
			t.Errorf("%d ns after %d = %d; want %d", tt.ns, tt.from, got, tt.want)
		}
	}
	for _, tt := range []struct {
		later, earlier Instant
		want           time.Duration
	}{{last, first, math.MaxInt64}, {first, last, 0}, {5, 5, 0}, {5, -5, 10}, {last, 0, math.MaxInt64}, {0, first, math.MaxInt64}, {-1, first, math.MaxInt64}} {
		if got := tt.later.Sub(tt.earlier); got != tt.want {
			t.Errorf("%d.Sub(%d) = %d; want %d", tt.later, tt.earlier, got, tt.want)
		}
	}
}

// The table of the package comment, and the memory per key that a store can count on.
func TestAStateIs24Bytes(t *testing.T) {
	if got := unsafe.Sizeof(State{}); got != 24 {
		t.Errorf("a State has %d bytes; want 24", got)
	}
	if got := unsafe.Sizeof(logged{}); got != 16 {
		t.Errorf("an entry of a Log has %d bytes; want the 16 that Size counts", got)
	}
}

func TestAStateIsCreatedByTheFirstChargeAndNotBefore(t *testing.T) {
	for _, a := range RateAlgorithms() {
		k := newKey(Limit{Algorithm: a, Requests: 5, Period: time.Second})
		k.take(1, 0, true)
		k.take(2, 6, false)
		k.take(3, -1, true)
		if !k.unused() {
			t.Errorf("%v: a probe, a denial and a refund made %v", a, k)
		}
		if got := k.idleAt(); got != math.MinInt64 {
			t.Errorf("%v: a key never used is fresh at %d; want always", a, got)
		}
		k.take(4, 1, false)
		if k.unused() {
			t.Errorf("%v: a hit left no state", a)
		}
	}
}

// rapidChooser chooses by rapid, which shrinks failures and prints the seed.
type rapidChooser struct{ t *rapid.T }

func (c rapidChooser) upTo(what string, most uint64) uint64 {
	if most > math.MaxUint8 {
		return rapid.Uint64Range(0, most).Draw(c.t, what)
	}
	// Rapid's ranges prefer their ends, which makes short walks that do the first thing in every list:
	// here all are alike.
	return rapid.Custom(func(t *rapid.T) (x uint64) {
		for range bits.Len64(most) + 3 {
			x <<= 1
			if rapid.Bool().Draw(t, "bit") {
				x |= 1
			}
		}
		return x % (most + 1)
	}).Draw(c.t, what)
}

// seedChooser chooses by a seed, hundreds of times faster than rapid.
type seedChooser struct{ r *rand.Rand }

func (c seedChooser) upTo(_ string, most uint64) uint64 {
	if most == math.MaxUint64 {
		return c.r.Uint64()
	}
	return c.r.Uint64N(most + 1)
}

// newRand returns the random numbers of a seed.
func newRand(seed ...uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed[0], seed[len(seed)-1]))
}

// byteChooser chooses by the input of a fuzzer, and 0 once that is used up.
type byteChooser struct{ data []byte }

func (c *byteChooser) upTo(_ string, most uint64) uint64 {
	var word [8]byte
	size := 8
	if most <= math.MaxUint8 {
		size = 1
	}
	c.data = c.data[copy(word[:size], c.data):]
	x := binary.LittleEndian.Uint64(word[:])
	if most == math.MaxUint64 {
		return x
	}
	return x % (most + 1)
}

// failer is the part of a test that a property needs, of testing or of rapid.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// holds checks that a property holds of every algorithm: by rapid, and over seeded walks. The seeds
// are the same in every run; a failure prints the one that failed.
func holds(t *testing.T, property func(t failer, c chooser, a Algorithm)) {
	t.Helper()
	holdsOf(t, 2000, RateAlgorithms(), property)
}

// holdsOf is holds for some algorithms and with that many seeds.
func holdsOf(t *testing.T, walks uint64, algorithms []Algorithm, property func(t failer, c chooser, a Algorithm)) {
	t.Helper()
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			for seed := range walks {
				property(seeded{t, seed}, seedChooser{newRand(seed, uint64(a))}, a)
			}
			rapid.Check(t, func(t *rapid.T) { property(t, rapidChooser{t}, a) })
		})
	}
}

// seeded puts the seed before a failure's words.
type seeded struct {
	*testing.T
	seed uint64
}

func (s seeded) Fatalf(format string, args ...any) {
	s.Helper()
	s.T.Fatalf("seed %d: "+format, append([]any{s.seed}, args...)...)
}

// Each number of hits has one form, so that == compares limits.
func TestALimitHasOneFormOfEachNumber(t *testing.T) {
	numbers := []uint64{0, 1, MaxHits - 1, MaxHits, MaxHits + 1, 2*MaxHits - 1, 2 * MaxHits, 2*MaxHits + 1, 1 << 32, 250_000_000_000, MaxCount - 1, MaxCount}
	for _, n := range numbers {
		l := Limit{Algorithm: FixedWindow, Period: time.Second}
		l.SetPerPeriod(n)
		if l.PerPeriod() != n || l.Capacity() != n || (l.Requests == 0) != (n == 0) || (l.More > 0) != (n > MaxHits) {
			t.Errorf("SetPerPeriod(%d) makes %+v, of %d", n, l, l.PerPeriod())
		}
		if err := l.Validate(); err != nil {
			t.Errorf("%d hits: %v", n, err)
		}
	}
	for text, l := range map[string]Limit{
		"requests: 4294967296: only fixed_window has more than 4294967295":                                             {Algorithm: TokenBucket, Requests: 1, Period: time.Second, Extra: Extra{More: 1}},
		"requests: 0 and 1 times 4294967295: must be made by SetPerPeriod, of at most 9007199254740991":                {Algorithm: FixedWindow, Period: time.Second, Extra: Extra{More: 1}},
		"requests: 4294967295 and 2097152 times 4294967295: must be made by SetPerPeriod, of at most 9007199254740991": {Algorithm: CalendarWindow, Requests: MaxHits, Period: time.Second, Extra: Extra{More: 1 << 21}},
	} {
		if err := l.Validate(); err == nil || err.Error() != text {
			t.Errorf("%+v: %v; want %s", l, err, text)
		}
	}
	if got := unsafe.Sizeof(Limit{}); got != 32 {
		t.Errorf("a limit has %d bytes; want 32, as the compiler keeps no more in registers", got)
	}
}
