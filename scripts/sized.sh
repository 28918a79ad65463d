#!/bin/sh
# Runs the arguments, a `go test`, for the tests in files that import internal/testing/race,
# storetest or linear, without the race detector: with it such a test does a tenth of its work, or
# nothing.
set -eu
cd "$(dirname "$0")/.."

files=$(grep -rl --include='*_test.go' '"github.com/weirproxy/weir/internal/testing/\(race\|storetest\|linear\)"' cmd internal pkg)
# shellcheck disable=SC2086 # one word for each file
tests=$(sed -nE 's/^func (Test[A-Za-z0-9_]*)\(.*/\1/p' $files | sort -u | paste -sd '|' -)
# shellcheck disable=SC2086
exec "$@" -run="^($tests)\$" $(dirname $files | sort -u | sed 's|^|./|')
