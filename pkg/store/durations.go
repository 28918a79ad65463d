package store

import "time"

// Durations says how long something took, as a histogram at one moment.
type Durations struct {
	Buckets map[float64]uint64 // observations up to each upper bound, in seconds; longer ones are in Count alone
	Count   uint64             // observations
	Sum     time.Duration      // of all observations
}
