package descriptors

import (
	"fmt"
	"strings"
	"time"
)

// Unit is a unit of time, numbered as envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit.
type Unit int32

// The units. A month has 30 days, a year 365.
const (
	UnitUnknown Unit = 0
	Second      Unit = 1
	Minute      Unit = 2
	Hour        Unit = 3
	Day         Unit = 4
	Month       Unit = 5
	Year        Unit = 6
	Week        Unit = 7
)

// unitNames returns the names of the units by number.
func unitNames() [8]string {
	return [...]string{"unknown", "second", "minute", "hour", "day", "month", "year", "week"}
}

// String returns the unit's name as in rule files, lower case; "unknown" for UnitUnknown.
func (u Unit) String() string {
	if names := unitNames(); u >= 0 && int(u) < len(names) {
		return names[u]
	}
	return fmt.Sprintf("unit(%d)", int32(u))
}

// Duration returns the length of the unit, 0 for UnitUnknown and for numbers that are no unit.
func (u Unit) Duration() time.Duration {
	const day = 24 * time.Hour
	lengths := [...]time.Duration{0, time.Second, time.Minute, time.Hour, day, 30 * day, 365 * day, 7 * day}
	if u >= 0 && int(u) < len(lengths) {
		return lengths[u]
	}
	return 0
}

// ParseUnit returns the unit of that name, in any case. "unknown" names no unit.
func ParseUnit(name string) (Unit, bool) {
	for u, n := range unitNames() {
		if u > 0 && strings.EqualFold(n, name) {
			return Unit(u), true
		}
	}
	return UnitUnknown, false
}

// unitOf returns the largest unit that divides a period, and the quotient; UnitUnknown and 0 when
// no unit does.
func unitOf(period time.Duration) (Unit, uint32) {
	for _, u := range []Unit{Year, Month, Week, Day, Hour, Minute, Second} {
		if d := u.Duration(); period > 0 && period%d == 0 {
			return u, uint32(period / d)
		}
	}
	return UnitUnknown, 0
}
