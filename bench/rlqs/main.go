// Rlqs measures how one limit is divided among eight real Envoys. Rlqs starts a sidecar built from
// this tree and the Envoys. Clients send requests at random instants (Poisson). The verdict comes
// only from the requests and the answers, by the clock of the clients.
//
//	go -C bench run ./rlqs
//	go -C bench run ./rlqs -row 'steady|crowd|faults' -lasts 10m
//	go -C bench run ./rlqs -cost
//
// The report has a line for each row, and for each tenant of a row that has several:
//
//	admitted  answers with 200, and the part of the requests that one process would have admitted.
//	          The first seconds do not count, see -warm, and in the row of faults the time after one
//	over      hits admitted beyond the promise in any interval (see test/promise), also in the first
//	          seconds: a lower bound
//	first     from the first request of a bucket in an Envoy to the first answer with 200, the median
//	          and the longest: each row begins another bucket in an Envoy at times
//	failed    requests without an answer
//	cpu       of the sidecar, in a second
//
// Rlqs exits 1 when it cannot measure, and when a row without a stated overshoot has hits over.
// Rlqs needs Envoy, as scripts/envoy.sh finds it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

func main() { os.Exit(program.Main("rlqs", run)) }

// options are the settings of a run.
type options struct {
	row     *regexp.Regexp
	lasts   time.Duration
	warm    time.Duration
	sidecar string
	envoy   string
	cost    bool
	more    []string // arguments of serve
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	var pattern string
	o.more, err = program.Parse("rlqs", args, stderr, func(flags *flag.FlagSet) {
		flags.StringVar(&pattern, "row", ".*", "a regular expression: the rows to run, by name")
		flags.DurationVar(&o.lasts, "lasts", time.Minute, "how long each row lasts, with -warm")
		flags.DurationVar(&o.warm, "warm", 15*time.Second, "time of a row that does not count for the admitted part")
		flags.BoolVar(&o.cost, "cost", false, "measure the CPU time of the sidecar alone, with clients that report as Envoys do")
		flags.StringVar(&o.sidecar, "sidecar", "", "a binary to measure instead of building ./cmd/sidecar")
	})
	if err != nil {
		return o, err
	}
	if o.warm < 0 || o.lasts <= o.warm {
		return o, errors.New("warm must not be negative, and lasts must be longer")
	}
	if o.row, err = regexp.Compile("^(?:" + pattern + ")$"); err != nil {
		return o, err
	}
	var names []string
	for _, r := range rows() {
		if names = append(names, r.name); o.row.MatchString(r.name) {
			return o, nil
		}
	}
	return o, fmt.Errorf("row %q: must match one of %s", pattern, strings.Join(names, ", "))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	root, err := parts.Root()
	if err != nil {
		return err
	}
	if o.sidecar, err = program.Sidecar(ctx, o.sidecar); err != nil {
		return err
	}
	if o.cost {
		return costs(ctx, &o, stdout)
	}
	if o.envoy, err = parts.FindEnvoy(ctx, root); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d Envoys; each row lasts %v\n\n", envoys, o.lasts)
	fmt.Fprintln(stdout, "| row | limit | admitted | of one process | over | first | failed | cpu |\n|---|---|---|---|---|---|---|---|")
	var failures []error
	for _, r := range rows() {
		if !o.row.MatchString(r.name) {
			continue
		}
		all, err := measure(ctx, root, &r, &o)
		if err != nil {
			return errors.Join(append(failures, fmt.Errorf("%s: %w", r.name, err))...)
		}
		for i, v := range all {
			l := &r.loads[i]
			fmt.Fprintf(stdout, "| %s | %s | %d | %.1f %% | %d | %v, %v | %d | %.1f ms |\n", l.what, l.limitText(), v.admitted,
				100*float64(v.admitted)/float64(max(v.expected, 1)), v.over, v.median, v.longest, v.failed, v.cpu)
			if v.over > 0 && !r.mayBeOver {
				failures = append(failures, fmt.Errorf("%s, %s: %d hits over", r.name, l.tenant, v.over))
			}
		}
	}
	return errors.Join(failures...)
}
