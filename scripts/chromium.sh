#!/bin/sh
# Prints the path of a Chromium or Chrome: $CHROMIUM, else one on the PATH, else a copy in .cache/.
# The first call unpacks that copy from the Debian package chromium and its dependencies that are
# not installed. Nothing is installed, and root is not needed. Without a Chromium, the script names
# the missing part in one line on standard error and exits 1. May run several times at once: the
# copy appears in its place whole or not at all.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
copy=$root/.cache/chromium
. "$root/scripts/debian.sh"

missing() {
	echo "no Chromium: $1 (set CHROMIUM=/path/to/chromium, or install the package chromium)" >&2
	exit 1
}

if [ -n "${CHROMIUM:-}" ]; then
	[ -x "$CHROMIUM" ] && [ ! -d "$CHROMIUM" ] || missing "CHROMIUM=$CHROMIUM is not a program"
	echo "$CHROMIUM"
	exit
fi
for name in chromium chromium-browser google-chrome google-chrome-stable headless-shell; do
	if path=$(command -v $name) && "$path" --version >/dev/null 2>&1; then
		echo "$path"
		exit
	fi
done
if [ -x "$copy/chromium" ] && "$copy/chromium" --version >/dev/null 2>&1; then
	echo "$copy/chromium"
	exit
fi

unpack chromium chromium

# The program with the libraries that were unpacked with it.
cat >"$tmp/chromium/chromium" <<-'WRAPPER'
	#!/bin/sh
	here=$(cd "$(dirname "$0")" && pwd)
	# Some libraries are in folders of their own, such as pulseaudio.
	own=$(find "$here/usr/lib" "$here/lib" -name 'lib*.so*' -printf '%h\n' 2>/dev/null | sort -u | tr '\n' ':')
	export LD_LIBRARY_PATH="${own%:}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
	[ -e /etc/fonts/fonts.conf ] || export FONTCONFIG_FILE="$here/etc/fonts/fonts.conf"
	exec "$here/usr/lib/chromium/chromium" "$@"
WRAPPER
chmod +x "$tmp/chromium/chromium"
"$tmp/chromium/chromium" --version >"$tmp/log" 2>&1 || missing "the package chromium does not run on this machine: $(tail -n 1 "$tmp/log")"
place chromium "$copy" chromium
