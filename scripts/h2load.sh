#!/bin/sh
# Prints the path of h2load, the HTTP/2 load generator of nghttp2 that drives the gRPC benchmark. Installs h2load as root on a
# Debian-like system. Elsewhere the script names the missing package in one line on standard error and exits 1.
set -eu

if command -v h2load; then
	exit
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	apt-get install -y -q nghttp2-client >/dev/null 2>&1 ||
		{ apt-get update -q && apt-get install -y -q nghttp2-client; } >/dev/null 2>&1 || true
	if command -v h2load; then
		exit
	fi
fi
echo "no h2load: install the package nghttp2-client (Debian, Ubuntu) or nghttp2 (others)" >&2
exit 1
