// Package e2e holds the end-to-end tests: the sidecar as built, real Envoy in front of it, a small backend behind, and HTTP requests
// that go through all three; sidecars that share their counts in a real Redis, to which is done what happens to a Redis in a year; and
// the integration tests of envoyproxy/ratelimit, played against cmd/ratelimit (original_*_test.go).
// Each test starts its own programs on ports the system chooses and ends them.
//
// Envoy comes from scripts/envoy.sh, Redis from scripts/redis.sh. Without one the tests that need it skip, or fail where WEIR_REQUIRE
// names envoy or redis. SIDECAR and RATELIMIT may name the binaries to test; otherwise the tests build cmd/sidecar and cmd/ratelimit, with
// the race detector if they have it themselves.
package e2e
