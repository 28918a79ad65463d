package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// newReplay returns the command that runs an algorithm over requests of a file.
func newReplay() *cobra.Command {
	r := &replay{clients: make(map[string]*client)}
	var algorithm, output string
	var header bool
	cmd := &cobra.Command{
		Use:   "replay --algorithm NAME --limit N --period DURATION [--at-most DURATION] [FILE]",
		Short: "Run an algorithm over requests in a file and print its decisions",
		Long: `Run an algorithm over requests and print a line for each: allow or deny.

Requests come from FILE, or standard input, as lines

  request <client> <timestamp> [hits]

Timestamps are whole numbers of --time-unit; a timestamp before the client's last one counts as the last one. hits is 0 to
4294967295 and 1 by default; 0 asks and takes nothing. The command skips blank lines and lines that begin with #. Each client
has its own count. A denied request counts nothing, unless --count-rejected is given.

A request may hold its hits from a begin to an end, as under a limit with hold, with the lines

  begin <client> <timestamp> <holder> [hits]
  end <client> <timestamp> <holder> [hits]

The end names the true hits, and is always allowed. A holder is forgotten --at-most after its begin. concurrency has no other lines, and no
--period: --limit is max_in_flight there.

token_bucket_integer counts in whole time units here: the period must be a whole number of time units, and all waits are. The
service counts in nanoseconds, as this command does with --time-unit 1ns.

A request for more hits than the limit ever has never passes. In JSON its line has "retry_after_ns":null and "never":true; in text a
note on standard error counts such requests.

With --header the first three lines hold one number each: the limit, the period in time units, and the number of requests. The
header wins over --limit and --period.`,
		Example: `  printf 'request alice 0\nrequest alice 1\n' | sidecar replay --algorithm token_bucket --limit 1 --period 10s`,
		Args:    arguments(0, 1, "at most one FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.complete(cmd.Flags().Changed, algorithm, output, header); err != nil {
				return err
			}
			return r.replay(cmd, args, header)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&algorithm, "algorithm", "", "`name`: "+algorithms.Names())
	flags.Uint32Var(&r.limit.Requests, "limit", 0, "hits per period; 0 denies every hit")
	flags.DurationVar(&r.limit.Period, "period", 0, "`duration`, such as 10s or 1h30m")
	flags.Uint32Var(&r.limit.Burst, "burst", 0, "token_bucket: total capacity (default the limit)")
	flags.DurationVar(&r.atMost, "at-most", 0, "`duration` after which a holder is forgotten; needed for begin and end")
	flags.DurationVar(&r.unit, "time-unit", time.Second, "`duration` that timestamps count")
	flags.BoolVar(&r.countRejected, "count-rejected", false, "denied hits count too")
	flags.BoolVar(&header, "header", false, "the first three lines give limit, period and number of requests")
	flags.StringVar(&output, "output", outputText, "text|json")
	return cmd
}

// replay runs over the requests of the file, or of standard input, and writes notes about them.
func (r *replay) replay(cmd *cobra.Command, args []string, header bool) error {
	in := cmd.InOrStdin()
	if len(args) == 1 && args[0] != "-" {
		file, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // nothing was written
		in = file
	}
	err := r.run(in, cmd.OutOrStdout(), header)
	if r.never > 0 && !r.json {
		cmd.PrintErrf("%s never: more hits than the limit ever has\n", count(r.never, "request"))
	}
	if err == nil && r.coarse() {
		cmd.PrintErrf("note: %d hits in %d time units are more than one per unit, and not a whole number per unit: "+
			"the formula then finds tokens again and again at one instant; timestamps in a smaller --time-unit avoid that\n",
			r.limit.Requests, r.limit.Period/r.tick)
	}
	return err
}

// complete takes the flags that r does not hold itself. The error has every mistake in the flags.
func (r *replay) complete(given func(name string) bool, algorithm, output string, header bool) error {
	var errs []error
	var err error
	if r.limit.Algorithm, err = algorithms.ParseAlgorithm(algorithm); err != nil {
		errs = append(errs, fmt.Errorf("--algorithm: %w", err))
	}
	if r.unit <= 0 {
		errs = append(errs, fmt.Errorf("--time-unit: %v: must be more than 0", r.unit))
	}
	slots := r.limit.Algorithm == algorithms.Concurrency
	for _, name := range []string{"limit", "period"} {
		if !header && !given(name) && !(slots && name == "period") {
			errs = append(errs, fmt.Errorf("--%s: is missing, must be given unless --header is", name))
		}
	}
	for _, name := range []string{"period", "header", "count-rejected"} {
		if slots && given(name) {
			errs = append(errs, fmt.Errorf("--%s: has no meaning for concurrency, must be left out", name))
		}
	}
	if needs := slots || given("at-most"); needs && (r.atMost < algorithms.MinPeriod || r.atMost > algorithms.MaxPeriod) {
		errs = append(errs, fmt.Errorf("--at-most: %v: must be between %v and 10 years", r.atMost, algorithms.MinPeriod))
	}
	errs = append(errs, outputFormat(output))
	r.json = output == outputJSON
	if errors.Join(errs...) == nil && !header {
		errs = append(errs, r.check())
	}
	if err := errors.Join(errs...); err != nil {
		return usage("%w", err)
	}
	return nil
}

// check returns all mistakes of the limit, and chooses the tick of its algorithm.
func (r *replay) check() error {
	r.tick = time.Nanosecond
	if r.limit.Algorithm != algorithms.TokenBucketInteger {
		return r.limit.Validate()
	}
	r.tick = r.unit
	err := r.limit.Validate()
	if err == nil && r.limit.Period%r.tick != 0 {
		err = fmt.Errorf("period: %v: token_bucket_integer counts in whole time units, must be a whole number of --time-unit %v",
			r.limit.Period, r.unit)
	}
	return err
}

// coarse reports whether the tick is too coarse for the limit. The mark then moves by less than the
// time of the tokens, and the bucket gains tokens again at the same instant.
func (r *replay) coarse() bool {
	if r.limit.Algorithm != algorithms.TokenBucketInteger {
		return false
	}
	requests, ticks := int64(r.limit.Requests), int64(r.limit.Period/r.tick)
	return requests > ticks && requests%ticks != 0
}

// replay is a run of one algorithm over requests.
type replay struct {
	limit         algorithms.Limit
	unit          time.Duration // of timestamps
	tick          time.Duration // in which the algorithm counts: the nanosecond, or unit
	atMost        time.Duration // of holders; 0: not given
	countRejected bool
	json          bool
	clients       map[string]*client
	never         int    // requests that never pass
	buf           []byte // one line of output
}
