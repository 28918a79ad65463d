// Package timespan reads and writes durations: of rules, settings, flags, tests of rules and
// grants. All of these have one syntax.
package timespan

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// ErrSyntax says that a text is no duration, or longer than 292 years.
var ErrSyntax = errors.New("must be numbers with a unit each (ms, s, m, h, d, w), such as 250ms, 1h30m, 7d or 2w, of at most 292 years")

// Parse returns a duration of Go's syntax, see [time.ParseDuration]. Beside Go's units there are d
// for 24 hours and w for 7 days. The error is ErrSyntax.
func Parse(text string) (time.Duration, error) {
	if !strings.ContainsAny(text, "dw") {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, ErrSyntax
		}
		return d, nil
	}
	rest, negative := strings.CutPrefix(text, "-")
	if !negative {
		rest = strings.TrimPrefix(rest, "+")
	}
	const digits = "0123456789."
	var sum time.Duration
	for rest != "" {
		number := len(rest) - len(strings.TrimLeft(rest, digits))
		end := strings.IndexAny(rest[number:], digits)
		if end += number; end < number {
			end = len(rest)
		}
		d, ok := part(rest[:number], rest[number:end])
		if !ok || sum > math.MaxInt64-d {
			return 0, ErrSyntax
		}
		sum, rest = sum+d, rest[end:]
	}
	if negative {
		sum = -sum
	}
	return sum, nil
}

// part returns a number of one unit; false for another text, and for a number without a sign that
// is too large.
func part(number, unit string) (time.Duration, bool) {
	times := time.Duration(1)
	switch unit {
	case "":
		return 0, false // Go takes the number 0 alone
	case "d":
		times, unit = 24, "h"
	case "w":
		times, unit = 7*24, "h"
	}
	d, err := time.ParseDuration(number + unit)
	return d * times, err == nil && number != "" && d <= math.MaxInt64/times
}

// Format returns a duration without the units that are zero, such as 1m, 1h30m and 7d.
func Format(d time.Duration) string {
	const day = 24 * time.Hour
	if d > 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Hint ends an error about a number without a unit: ", probably 60s is meant". Of other texts it is
// "".
func Hint(text string) string {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil && n > 0 {
		return ", probably " + text + "s is meant"
	}
	return ""
}
