// Package race says whether the race detector is on, for tests that the race detector changes or
// slows down.
//
// The race detector makes sync.Pool drop values, so that allocations cannot be counted. A test that
// repeats one step 100 000 times finds no more races than one that repeats it 10 000 times. `make
// test` runs the tests with the race detector. A test that uses this package, itself or through
// helpers, runs again without the race detector (scripts/sized.sh).
package race

import "testing"

// Short reports whether a test leaves out a part of its cases: with the race detector or with
// -short.
func Short() bool { return Enabled || testing.Short() }

// Scale returns n, the size of a test, or a tenth of n with the race detector or with -short. The
// result is at least 1.
func Scale(n int) int {
	if Short() {
		return max(1, n/10)
	}
	return n
}

// Without skips a test when the race detector is on. Use it where one goroutine does all the work,
// so that there is no race to find, and where the detector would spoil the figures. The run without
// the detector makes the claim of the test.
func Without(tb testing.TB) {
	tb.Helper()
	if Enabled {
		tb.Skip("this test runs without the race detector")
	}
}
