#!/bin/sh
# Prints the path of a real redis-server, 6.2 or newer: $REDIS_SERVER, else redis-server or
# valkey-server on the PATH, else a copy in .cache/. The first call unpacks that copy from the
# Debian packages redis-server and redis-tools and their dependencies. Nothing is installed, no
# service is started, root is not needed. Without a Redis, the script names the missing part in one
# line on standard error and exits 1. May run several times at once: the copy appears in its place
# whole or not at all.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
copy=$root/.cache/redis
. "$root/scripts/debian.sh"

missing() {
	echo "no Redis: $1 (set REDIS_SERVER=/path/to/redis-server, or put redis-server on the PATH)" >&2
	exit 1
}

# recent says whether a program runs and is a Redis of 6.2 or newer, or a Valkey.
recent() {
	"$1" --version 2>/dev/null | sed -n 's/.* v=\([0-9]*\)\.\([0-9]*\).*/\1 \2/p' | {
		read -r major minor && { [ "$major" -gt 6 ] || { [ "$major" -eq 6 ] && [ "$minor" -ge 2 ]; }; }
	}
}

if [ -n "${REDIS_SERVER:-}" ]; then
	[ -x "$REDIS_SERVER" ] && [ ! -d "$REDIS_SERVER" ] || missing "REDIS_SERVER=$REDIS_SERVER is not a program"
	recent "$REDIS_SERVER" || missing "REDIS_SERVER=$REDIS_SERVER is not a redis-server of 6.2 or newer"
	echo "$REDIS_SERVER"
	exit
fi
for name in redis-server valkey-server; do
	if path=$(command -v $name) && recent "$path"; then
		echo "$path"
		exit
	fi
done
if [ -x "$copy/redis-server" ] && recent "$copy/redis-server"; then
	echo "$copy/redis-server"
	exit
fi

unpack redis redis-server redis-tools

# The programs by their names beside each other, each with the libraries that were unpacked with it.
for name in redis-server redis-cli; do
	cat >"$tmp/redis/$name" <<-'WRAPPER'
		#!/bin/sh
		here=$(dirname "$0")
		own=$(printf '%s:' "$here"/usr/lib/*-linux-* "$here"/lib/*-linux-*)
		export LD_LIBRARY_PATH="${own%:}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
		exec "$here/usr/bin/${0##*/}" "$@"
	WRAPPER
	chmod +x "$tmp/redis/$name"
done
"$tmp/redis/redis-server" --version >"$tmp/log" 2>&1 || missing "the package redis-server does not run on this machine: $(tail -n 1 "$tmp/log")"
recent "$tmp/redis/redis-server" || missing "the package redis-server is older than 6.2: $(tail -n 1 "$tmp/log")"
# A copy that does not run gives way.
if [ -e "$copy" ] && ! recent "$copy/redis-server"; then
	mv "$copy" "$tmp/old"
fi
place redis "$copy" redis-server
