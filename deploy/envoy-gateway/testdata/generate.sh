#!/bin/sh
# Writes the YAML files beside it anew: what Envoy Gateway makes of ../envoy-gateway.yaml, of ../../envoy-gateway-memory/envoy-gateway.yaml
# and of ../policy.yaml. Its translator does it, whose packages nobody else may import, so that a copy of the whole is built with the
# program in generate/. The first run compiles much of it, which takes some minutes.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
module=github.com/envoyproxy/gateway
cd "$here/../../crds"
go mod download "$module"
source=$(go list -m -f '{{.Dir}}' "$module")
version=$(go list -m -f '{{.Version}}' "$module")

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
cp -R "$source" "$tmp/gateway"
chmod -R u+w "$tmp/gateway"
cp -R "$here/generate" "$tmp/gateway/cmd/generate"
cd "$tmp/gateway"
go run ./cmd/generate "$version" "$here/.." "$here/../../envoy-gateway-memory" "$here"
