package timespan

import (
	"errors"
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Third: []string{}})
}

func TestDaysAndWeeksStandBesideTheUnitsOfGo(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "250ms": 250 * time.Millisecond, "1h30m": 90 * time.Minute, "1d": day, "7d": 7 * day, "2w": 14 * day, "1w2d3h": 9*day + 3*time.Hour,
		"1.5d": 36 * time.Hour, "1d12h": 36 * time.Hour, "-1d": -day, "+1d": day, ".5w": 84 * time.Hour, "3h1d": 27 * time.Hour, "0d": 0,
		"106751d": 106751 * day, "1dmiss": -1, "d": -1, "": -1, "1": -1, "1d1": -1, "1 d": -1, "1D": -1, "--1d": -1, "-+1d": -1, "1d-1h": -1,
		"106752d": -1, "15251w": -1, "106751d24h": -1, "1..5d": -1, "1week": -1, "1day": -1, "1d0": -1, ".d": -1, "99999999999999999999d": -1,
	} {
		got, err := Parse(text)
		if want == -1 && text != "-1ns" {
			if !errors.Is(err, ErrSyntax) {
				t.Errorf("%q: got %v and %v, want ErrSyntax", text, got, err)
			}
		} else if err != nil || got != want {
			t.Errorf("%q: got %v and %v, want %v", text, got, err, want)
		}
	}
}

func TestANumberWithoutAUnitHasAHint(t *testing.T) {
	for text, want := range map[string]string{"60": ", probably 60s is meant", "0": "", "x": "", "-1": "", "1.5": "", "99999999999": ""} {
		if got := Hint(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// slow reads a duration of days and weeks with exact fractions.
func slow(text string) (*big.Rat, bool) {
	if !regexp.MustCompile(`^[+-]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h|d|w))+$`).MatchString(text) {
		return nil, false
	}
	sum := new(big.Rat)
	for _, part := range regexp.MustCompile(`([\d.]+)([^\d.]+)`).FindAllStringSubmatch(strings.TrimLeft(text, "+-"), -1) {
		n, _ := new(big.Rat).SetString(part[1])
		if n == nil {
			return nil, false
		}
		units := map[string]int64{
			"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 86400e9, "w": 7 * 86400e9,
		}
		sum.Add(sum, n.Mul(n, new(big.Rat).SetInt64(units[part[2]])))
	}
	if strings.HasPrefix(text, "-") {
		sum.Neg(sum)
	}
	return sum, true
}

// FuzzParse compares Parse with exact fractions, and with Go where a text has no day or week.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"1d", "7d", "2w", "1w2d3h4m5s6ms7us8ns", "0.1d", "-1.5w", "d", "1dd", "106751d23h47m16.854775807s", "1µs1d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 100 || strings.Contains(text, "-9223372036854775808") {
			return
		}
		got, err := Parse(text)
		if !strings.ContainsAny(text, "dw") {
			if want, wrong := time.ParseDuration(text); got != want || (err == nil) != (wrong == nil) {
				t.Fatalf("%q: got %v and %v, want %v and %v as Go", text, got, err, want, wrong)
			}
			return
		}
		want, right := slow(text)
		if err == nil != right {
			if right && new(big.Rat).Abs(want).Cmp(new(big.Rat).SetInt64(math.MaxInt64-1e6)) > 0 {
				return // too long
			}
			t.Fatalf("%q: got %v and %v, want %v, %t", text, got, err, want, right)
		}
		if err != nil {
			return
		}
		off := new(big.Rat).Sub(want, new(big.Rat).SetInt64(int64(got)))
		if off.Abs(off).Cmp(new(big.Rat).SetInt64(int64(200*len(text)))) > 0 { // a part of an hour is cut to nanoseconds
			t.Fatalf("%q: got %v, want %v ns", text, got, want)
		}
	})
}
