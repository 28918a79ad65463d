#!/bin/sh
# Runs the arguments, a `go test -race`, and once more the packages in which the race detector
# itself crashed. In a bubble of testing/synctest all timers share one context of the detector, and
# two threads can spoil the context (golang/go#78156, open in Go 1.26). A crash is also a fault in
# code that is not of Go, or a signal that ends the process and prints the registers. A test that
# fails, a data race, a panic or a test that takes too long gets no second try. One processor runs
# one thread at a time, so the second try cannot crash in this way.
set -u

out=$(mktemp)
trap 'rm -f "$out" "$out.status"' EXIT
trap 'exit 130' INT
{ "$@" 2>&1; echo $? >"$out.status"; } | tee "$out"
status=$(cat "$out.status")
[ "$status" != 0 ] || exit 0

crashed=$(awk '
	/^ *--- FAIL|DATA RACE|^panic: |^SIGQUIT: |test timed out|\[(build|setup) failed\]/ { failed = 1 }
	/ThreadSanitizer: CHECK failed|^fatal error: (fault|traceback|unexpected signal)/ { crash = 1 }
	/^SIG[A-Z]+: |^PC=0x[0-9a-f]+ m=|: unexpected return pc for runtime\./ { crash = 1 }
	/^(ok|\?) / { failed = crash = 0 }
	/^FAIL\t/ { if (failed || !crash) others = 1; else packages = packages " " $2; failed = crash = 0 }
	END { if (!others) print packages }' "$out")
[ -n "$crashed" ] || exit "$status"

echo "race.sh: the race detector crashed, once more:$crashed" >&2
first=1
for argument; do # the same command without its packages
	if [ "$first" = 1 ]; then set --; first=0; fi
	case $argument in
	-* | /*) set -- "$@" "$argument" ;;
	./* | */*/*) ;;
	*) set -- "$@" "$argument" ;;
	esac
done
# shellcheck disable=SC2086 # one word for each package
"$@" -cpu 1 $crashed
