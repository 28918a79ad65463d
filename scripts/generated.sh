#!/bin/sh
# Fails when the generated code that is checked in differs from the output of `make generate`, and
# shows the difference. Changes nothing in the work tree.
set -eu
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go tool -modfile=tools/go.mod buf generate --output "$tmp"
if ! diff -ru --exclude='*.proto' proto "$tmp/proto"; then
	echo "proto/ is not what its .proto files say: run make generate" >&2
	exit 1
fi
