#!/bin/sh
# Fails when a client written for the admin API of before would break on the one of this work tree.
# Before is the revision $AGAINST, else the last release (a tag v*), else the commit before this
# one.
set -eu
cd "$(dirname "$0")/.."

before=${AGAINST:-$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null || git rev-parse --verify --quiet HEAD^ || true)}
if [ -z "$before" ]; then
	echo "breaking changes: nothing to compare with, there is no earlier commit here"
	exit
fi
git rev-parse --verify "$before^{commit}" >/dev/null
if ! git cat-file -e "$before:buf.yaml" 2>/dev/null; then
	echo "breaking changes: nothing to compare with, $before has no protobuf files"
	exit
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
git archive --output="$tmp/before.tar" "$before" buf.yaml proto
tar -xf "$tmp/before.tar" -C "$tmp"
go tool -modfile=tools/go.mod buf breaking --against "$tmp"
