#!/bin/sh
# Runs govulncheck with the given arguments, and fails when Weir calls code with a known
# vulnerability. Where the database does not answer, the script says so in one line and succeeds, or
# fails if WEIR_REQUIRE names vulnerabilities.
set -eu
cd "$(dirname "$0")/.."

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
status=0
go tool -modfile=tools/go.mod govulncheck "$@" 2>"$errors" || status=$?
# govulncheck has one status for all its own errors. These two begin its errors of a connection and
# of an HTTP status.
reason=$(sed -n 's/^govulncheck: fetching vulnerabilities: \(Get "\|HTTP GET \)/\1/p' "$errors" | head -n 1)
if [ "$status" = 0 ] || [ -z "$reason" ]; then
	cat "$errors" >&2
	exit "$status"
fi
case ",$(echo "${WEIR_REQUIRE:-}" | tr ' ' ',')," in
*,vulnerabilities,*)
	echo "vulnerabilities FAILED: the database does not answer, and WEIR_REQUIRE names vulnerabilities: $reason" >&2
	exit 1
	;;
esac
echo "vulnerabilities SKIPPED, no code was looked at: the database does not answer: $reason" >&2
