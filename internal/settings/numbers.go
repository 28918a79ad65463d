package settings

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Number accepts a whole number from min to max, in base 10.
func Number(to *int, min, max int) Value { return number(to, 10, min, max) }

// Integer accepts a whole number from min to max in the syntax of Go, such as 0x1F or 1_000.
func Integer(to *int, min, max int) Value { return number(to, 0, min, max) }

func number(to *int, base, min, max int) Value {
	return Value{Kind: "number", Set: func(raw any) error {
		n, ok := whole(raw, base)
		if !ok || n < min || n > max {
			return fmt.Errorf("%v: must be a whole number %s", quoted(raw), interval(min, max))
		}
		*to = n
		return nil
	}}
}

func interval(min, max int) string {
	switch {
	case min == math.MinInt && max == math.MaxInt:
		return "of 64 bits"
	case max == math.MaxInt:
		return fmt.Sprintf("of at least %d", min)
	default:
		return fmt.Sprintf("from %d to %d", min, max)
	}
}

// whole reads a whole number from text, and from the three formats of settings files.
func whole(raw any, base int) (int, bool) {
	switch n := raw.(type) {
	case string:
		i, err := strconv.ParseInt(n, base, strconv.IntSize)
		return int(i), err == nil
	case int:
		return n, true
	case int64:
		return int(n), true
	case float64: // JSON has no other numbers
		return int(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	}
	return 0, false
}

// Fraction accepts a number of at least 0. The number is rounded to 32 or 64 bits.
func Fraction(to *float64, bits int) Value {
	return textual("number", func(s string) error {
		f, err := strconv.ParseFloat(s, bits)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return fmt.Errorf("%q: must be a number of at least 0, such as 0.8", s)
		}
		*to = f
		return nil
	})
}

// Rate accepts a number of events and a time, such as 1/s or 10/m, and stores the events per
// second. 0 and the empty text mean no events.
func Rate(to *float64, max float64) Value {
	return textual("rate", func(s string) error {
		per, err := RateOf(s, max)
		if err == nil {
			*to = per
		}
		return err
	})
}

// RateOf reads a text as [Rate] does.
func RateOf(s string, max float64) (perSecond float64, err error) {
	if s == "" || s == "0" {
		return 0, nil
	}
	number, unit, _ := strings.Cut(s, "/")
	n, err := strconv.ParseFloat(number, 64)
	seconds := map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]
	if perSecond = n / seconds; err != nil || seconds == 0 || !(perSecond >= 0 && perSecond <= max) {
		return 0, fmt.Errorf("%q: must be a number per s, m or h, such as 1/s or 10/m, of at most %v/s, or 0", s, max)
	}
	return perSecond, nil
}
