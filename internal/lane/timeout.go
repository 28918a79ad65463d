package lane

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// parseTimeout reads a grpc-timeout: up to eight digits and a unit. The errors are the same as in
// grpc-go.
func parseTimeout(text []byte) (time.Duration, error) {
	if len(text) < 2 {
		return 0, fmt.Errorf("transport: timeout string is too short: %q", text)
	}
	if len(text) > 9 {
		return 0, fmt.Errorf("transport: timeout string is too long: %q", text)
	}
	unit := timeoutUnit(text[len(text)-1])
	if unit == 0 {
		return 0, fmt.Errorf("transport: timeout unit is not recognized: %q", text)
	}
	var count time.Duration
	for _, b := range text[:len(text)-1] {
		if b < '0' || b > '9' {
			_, err := strconv.ParseUint(string(text[:len(text)-1]), 10, 64)
			return 0, err
		}
		count = count*10 + time.Duration(b-'0')
	}
	if count > math.MaxInt64/unit {
		return math.MaxInt64, nil
	}
	return count * unit, nil
}

func timeoutUnit(letter byte) time.Duration {
	switch letter {
	case 'H':
		return time.Hour
	case 'M':
		return time.Minute
	case 'S':
		return time.Second
	case 'm':
		return time.Millisecond
	case 'u':
		return time.Microsecond
	case 'n':
		return time.Nanosecond
	}
	return 0
}
