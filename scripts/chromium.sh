#!/bin/sh
# Prints the path of a Chromium or Chrome: $CHROMIUM, else one on the PATH, else a copy in .cache/. The first call unpacks that copy from
# the Debian package chromium and its dependencies that are not installed. Nothing is installed, and root is not needed. Without a Chromium,
# the script names the missing part in one line on standard error and exits 1. May run several times at once: the copy appears in its place
# whole or not at all.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
copy=$root/.cache/chromium

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

command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
	missing "apt-get and dpkg are missing, which fetch it"

mkdir -p "$root/.cache"
tmp=$(mktemp -d "$root/.cache/chromium.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# fetch runs apt-get with all that it writes in a folder of our own; a further argument can name other package lists.
fetch() {
	apt-get -q -o Dir::Cache="$tmp/apt" -o Debug::NoLocking=true -o APT::Sandbox::User=root "$@" >>"$tmp/log" 2>&1
}

# download gets the package and its dependencies that are not installed. The function reads the machine's package lists.
download() {
	fetch "$@" install --yes --download-only --reinstall --no-install-recommends chromium
}

mkdir -p "$tmp/apt/archives/partial" "$tmp/lists/partial" "$tmp/chromium"
lists=-oDir::State::Lists=$tmp/lists
download || { fetch "$lists" update && download "$lists"; } ||
	missing "apt-get cannot fetch the package chromium: $(grep '^E:' "$tmp/log" | tail -n 1)"
for package in "$tmp"/apt/archives/*.deb; do
	dpkg -x "$package" "$tmp/chromium" 2>"$tmp/log" || missing "dpkg cannot unpack ${package##*/}: $(tail -n 1 "$tmp/log")"
done

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
# A copy that is there by now is another call's.
mv -T "$tmp/chromium" "$copy" 2>/dev/null || [ -x "$copy/chromium" ] || missing "cannot move the copy to $copy"
echo "$copy/chromium"
