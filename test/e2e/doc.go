// Package e2e holds the end-to-end tests: HTTP requests that go through real Envoy with a built
// sidecar beside and a small backend behind. In further tests sidecars share their counts in a real
// Redis, through a year's faults of a Redis. The integration tests of envoyproxy/ratelimit run
// against cmd/ratelimit (original_*_test.go). Each test starts its own programs on ports the system
// chooses and ends them.
//
// Envoy comes from scripts/envoy.sh, Redis from scripts/redis.sh. Without one the tests that need
// it skip, or fail where WEIR_REQUIRE names envoy or redis. SIDECAR and RATELIMIT may name the
// binaries to test; otherwise the tests build cmd/sidecar and cmd/ratelimit, with the race detector
// if they have it themselves.
package e2e
