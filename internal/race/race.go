// Package race says whether the race detector is on, for tests of what it changes: sync.Pool drops some of what it is given
// then, so that allocations cannot be counted.
package race
