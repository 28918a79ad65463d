#!/bin/sh
# Prints the path of the zone files that internal/zones embeds: $ZONES, else a copy in .cache/. The
# first call fetches that copy as the Python wheel tzdata. Without it, the script names the missing
# part in one line on standard error and exits 1. May run several times at once: the copy appears in
# its place whole or not at all. To take a newer release, write its version here, then run
#
#   go test ./internal/zones -run Source -update
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
version=2026.6
copy=$root/.cache/tzdata-$version.whl

if [ -n "${ZONES:-}" ]; then
	echo "$ZONES"
	exit
fi
if [ ! -f "$copy" ]; then
	mkdir -p "$root/.cache"
	tmp=$(mktemp -d "$root/.cache/zones.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	trap 'exit 1' HUP INT TERM
	if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--dest "$tmp" "tzdata==$version" >"$tmp/log" 2>&1; then
		echo "no zone files: pip cannot fetch tzdata $version: $(grep -v '^ *$' "$tmp/log" | tail -n 1) (set ZONES=/path/to/tzdata.whl)" >&2
		exit 1
	fi
	mv -f "$tmp"/*.whl "$copy"
fi
echo "$copy"
