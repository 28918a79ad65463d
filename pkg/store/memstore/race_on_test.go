//go:build race

package memstore

// raceEnabled: sync.Pool drops some of what it is given under the race detector, so that allocations cannot be counted.
const raceEnabled = true
