#!/bin/sh
# Usage: bom.sh VERSION PROGRAM…
# Writes PROGRAM.bom.json, a software bill of materials, beside each program. Fails when a module
# that `go version -m` prints for the program is not in the bill.
set -eu
cd "$(dirname "$0")/.."

version=$1
shift
go build -C tools -o ../bin/bom ./bom
bin/bom -version "$version" "$@"
for program; do
	# A line `=>` names the module that replaces the one before it; a directory has the version
	# (devel) and no name.
	modules=$(go version -m "$program" | awk '
		$1 == "dep" { if (module) print module; module = $2 "@" $3 }
		$1 == "=>" && $3 != "(devel)" { module = $2 "@" $3 }
		END { if (module) print module }')
	if [ -z "$modules" ]; then
		echo "$program: go version -m prints no module" >&2
		exit 1
	fi
	for module in $modules; do
		if ! grep -qF "\"bom-ref\": \"$module\"" "$program.bom.json"; then
			echo "$program.bom.json: module $module is missing" >&2
			exit 1
		fi
	done
	echo "$program.bom.json: all $(echo "$modules" | wc -l) modules of the program"
done
