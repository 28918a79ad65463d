package algorithms

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of a limit that is divided among clients, each of which counts its part by itself.
const (
	MaxDivided       = 1_000_000_000          // hits per period, and of the burst
	MinDividedWindow = 100 * time.Millisecond // a fixed window is longer
)

var errNotDivided = errors.New("only token_bucket and fixed_window can be divided among Envoys")

// CheckDivided returns the reason why a limit cannot be divided among clients that count by
// themselves; nil for none.
func (l Limit) CheckDivided() error {
	switch {
	case l.Algorithm != TokenBucket && l.Algorithm != FixedWindow || l.Calendar != nil:
		return errNotDivided
	case l.Algorithm == FixedWindow && l.Period <= MinDividedWindow:
		return fmt.Errorf("a window of at most %v cannot be divided among Envoys", MinDividedWindow)
	case l.PerPeriod() > MaxDivided || l.Capacity() > MaxDivided:
		return fmt.Errorf("a limit of more than %d hits cannot be divided among Envoys", MaxDivided)
	}
	return nil
}
