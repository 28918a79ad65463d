#!/bin/sh
# Runs the arguments, a `go test`, for the tests whose work depends on internal/testing/race. With
# the race detector such a test does a tenth of its work, or nothing.
set -euf
cd "$(dirname "$0")/.."

# The longest packages come first: at the end no package should run alone.
tests=$(go run ./internal/testing/sized pkg/store pkg cmd internal)
# shellcheck disable=SC2086 # one word for each argument; no name has a space
exec "$@" $tests
