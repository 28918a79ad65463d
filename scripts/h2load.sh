#!/bin/sh
# Prints the path of h2load, the HTTP/2 load generator of nghttp2 that drives the gRPC benchmark.
# Installs h2load as root on a Debian-like system, and nghttpd, the server of nghttp2 that the
# benchmark compares with. Elsewhere the script names the missing package in one line on standard
# error and exits 1; the benchmark does without nghttpd.
set -eu

install() { # a program and its package
	if ! command -v "$1" >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		apt-get install -y -q "$2" >/dev/null 2>&1 || { apt-get update -q && apt-get install -y -q "$2"; } >/dev/null 2>&1 || true
	fi
}

install nghttpd nghttp2-server
install h2load nghttp2-client
if command -v h2load; then
	exit
fi
echo "no h2load: install the package nghttp2-client (Debian, Ubuntu) or nghttp2 (others)" >&2
exit 1
