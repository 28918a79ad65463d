# The part of chromium.sh and redis.sh that unpacks Debian packages into .cache/. The scripts have a
# variable and a function:
#   root: the directory of the repository.
#   missing: prints the missing part, and ends the script.

# unpack NAME PACKAGE... unpacks packages, and their dependencies that are not installed, into the
# new directory $tmp/NAME. $tmp ends with the script. $tmp/log is for the output of programs.
unpack() {
	into=$1
	shift
	command -v apt-get >/dev/null && command -v dpkg >/dev/null || missing "apt-get and dpkg are missing, which fetch it"

	mkdir -p "$root/.cache"
	tmp=$(mktemp -d "$root/.cache/$into.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	trap 'exit 1' HUP INT TERM

	mkdir -p "$tmp/apt/archives/partial" "$tmp/lists/partial" "$tmp/$into"
	lists=
	download "$@" || { lists=$tmp/lists && apt update && download "$@"; } ||
		missing "apt-get cannot fetch the package $1: $(grep '^E:' "$tmp/log" | tail -n 1)"
	for package in "$tmp"/apt/archives/*.deb; do
		dpkg -x "$package" "$tmp/$into" 2>"$tmp/log" || missing "dpkg cannot unpack ${package##*/}: $(tail -n 1 "$tmp/log")"
	done
}

# download gets packages, and their dependencies that are not installed.
download() {
	apt install --yes --download-only --reinstall --no-install-recommends "$@"
}

# apt runs apt-get with all that it writes in $tmp. The package lists are the machine's, unless
# lists names a directory.
apt() {
	apt-get -q -o Dir::Cache="$tmp/apt" ${lists:+-oDir::State::Lists="$lists"} -o Debug::NoLocking=true -o APT::Sandbox::User=root "$@" >>"$tmp/log" 2>&1
}

# place moves the directory $tmp/NAME to a path, and prints the path of a program there. A copy that
# is there by now is another call's.
place() {
	mv -T "$tmp/$1" "$2" 2>/dev/null || [ -x "$2/$3" ] || missing "cannot move the copy to $2"
	echo "$2/$3"
}
