#!/bin/sh
# Prints the path of a Chromium or Chrome: $CHROMIUM, else one on the PATH. Without one, the script names the missing part in one line on
# standard error and exits 1. It installs nothing.
set -eu

missing() {
	echo "no Chromium: $1 (set CHROMIUM=/path/to/chromium, or install the package chromium)" >&2
	exit 1
}

if [ -n "${CHROMIUM:-}" ]; then
	[ -x "$CHROMIUM" ] && [ ! -d "$CHROMIUM" ] || missing "CHROMIUM=$CHROMIUM is not a program"
	echo "$CHROMIUM"
	exit
fi
for name in chromium chromium-browser google-chrome google-chrome-stable chrome headless-shell; do
	if path=$(command -v $name); then
		echo "$path"
		exit
	fi
done
missing "there is no chromium, google-chrome or headless-shell on the PATH"
