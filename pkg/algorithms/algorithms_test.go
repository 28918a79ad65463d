package algorithms

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Std:   []string{"cmp", "errors", "fmt", "math", "math/bits", "strings", "time"},
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
		{name: "largest", limit: Limit{Algorithm: TokenBucket, Requests: math.MaxUint32, Period: MaxPeriod, Burst: math.MaxUint32}},
		{name: "ten_years", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: 87600 * time.Hour}},
		{name: "zero_value", want: []string{"algorithm", "period"}},
		{name: "too_short", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: MinPeriod - 1}, want: []string{"period"}},
		{name: "too_long", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: MaxPeriod + 1}, want: []string{"period"}},
		{name: "negative", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: math.MinInt64}, want: []string{"period"}},
		{name: "burst_of_a_window", limit: Limit{Algorithm: FixedWindow, Requests: 1, Period: time.Second, Burst: 1}, want: []string{"burst"}},
		{name: "burst_of_whole_tokens", limit: Limit{Algorithm: TokenBucketInteger, Requests: 1, Period: time.Second, Burst: 1}, want: []string{"burst"}},
		{name: "burst_of_a_ban", limit: Limit{Algorithm: TokenBucket, Period: time.Second, Burst: 1}, want: []string{"burst"}},
		{name: "concurrency", limit: Limit{Algorithm: Concurrency, Requests: 1}},
		{name: "concurrency_that_bans", limit: Limit{Algorithm: Concurrency}},
		{name: "period_of_concurrency", limit: Limit{Algorithm: Concurrency, Requests: 1, Period: time.Second}, want: []string{"period"}},
		{name: "burst_of_concurrency", limit: Limit{Algorithm: Concurrency, Requests: 1, Burst: 1}, want: []string{"burst"}},
		{name: "all_at_once", limit: Limit{Algorithm: 99, Burst: 1}, want: []string{"algorithm", "period", "burst", "burst"}},
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
		want := uint32(3)
		if a == TokenBucket {
			want = 7
		}
		if got := (Limit{Algorithm: a, Requests: 3, Burst: 7}).Capacity(); got != want {
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
