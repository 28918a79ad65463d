//go:build race

package e2e

// raceEnabled says that these tests were built with the race detector, and so the sidecar is too.
const raceEnabled = true
