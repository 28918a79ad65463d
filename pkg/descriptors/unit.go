package descriptors

import (
	"fmt"
	"strings"
	"time"
)

// units returns every unit, the longest first.
func units() [7]Unit { return [...]Unit{Year, Month, Week, Day, Hour, Minute, Second} }

// String returns the unit's name as in rule files, lower case; "unknown" for UnitUnknown.
func (u Unit) String() string {
	switch u {
	case UnitUnknown:
		return "unknown"
	case Second:
		return "second"
	case Minute:
		return "minute"
	case Hour:
		return "hour"
	case Day:
		return "day"
	case Week:
		return "week"
	case Month:
		return "month"
	case Year:
		return "year"
	default:
		return fmt.Sprintf("unit(%d)", uint8(u))
	}
}

// ParseUnit returns the unit of that name, in any case. "unknown" is none.
func ParseUnit(name string) (Unit, bool) {
	name = strings.ToUpper(name)
	for _, u := range units() {
		if strings.ToUpper(u.String()) == name {
			return u, true
		}
	}
	return UnitUnknown, false
}

// unitOf returns the largest unit that a period is a whole multiple of, and how many; UnitUnknown and 0 when there is none.
func unitOf(period time.Duration) (Unit, uint32) {
	for _, u := range units() {
		if d := u.Duration(); period > 0 && period%d == 0 {
			return u, uint32(period / d)
		}
	}
	return UnitUnknown, 0
}
