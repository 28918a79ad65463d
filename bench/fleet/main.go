// Fleet measures four sidecars over one Redis while Redis or a sidecar fails. Fleet starts Redis
// and sidecars built from this tree. Clients send requests at fixed instants. The verdict comes
// only from the requests and the answers, by the clock of the clients.
//
//	go -C bench run ./fleet
//	go -C bench run ./fleet -scenario 'late|jitter' -mode leased -lasts 10s -- --redis-timeout=20ms
//
// The report has a line for each scenario and mode:
//
//	over      hits admitted beyond the promise of their limit (see test/promise): a lower bound
//	worst     the same, of the key with most; the hits of a key with few are many percent
//	during    hits that the fleet denied during the fault, and one process would have admitted
//	after     the same, after the fault
//	lacks     hits of the key with the most of these, during the fault or after it
//	recovery  from the end of the fault until the fleet admits for half a second 95 % of the hits
//	          that one process would have admitted
//	errors    requests that ended with a gRPC error, or without an answer
//	late      answers after the timeout of the request
//	missing   hits of a limit of a day that were admitted, and that Redis does not count at the end
//
// Fleet exits 1 when it cannot measure, or when a metric of deploy/prometheus contradicts the
// clients. Fleet needs redis-server or valkey-server, as scripts/redis.sh finds it.
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
)

func main() { os.Exit(program.Main("fleet", run)) }

// options are the settings of a run.
type options struct {
	scenario *regexp.Regexp
	modes    []string
	lasts    time.Duration
	watched  time.Duration
	timeout  time.Duration // 0: none
	sidecar  string
	more     []string // arguments of serve
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	var pattern, modes string
	o.more, err = program.Parse("fleet", args, stderr, func(flags *flag.FlagSet) {
		flags.StringVar(&pattern, "scenario", ".*", "a regular expression: the scenarios to run, by name")
		flags.StringVar(&modes, "mode", "exact,leased", "values of --sharing")
		flags.DurationVar(&o.lasts, "lasts", 10*time.Second, "how long each fault lasts")
		flags.DurationVar(&o.watched, "watched", 6*time.Second, "how long the clients go on after the fault")
		flags.DurationVar(&o.timeout, "timeout", 20*time.Millisecond, "of a request, as Envoy says it by default; 0: none")
		flags.StringVar(&o.sidecar, "sidecar", "", "a binary to measure instead of building ./cmd/sidecar")
	})
	if err != nil {
		return o, err
	}
	if o.lasts < 100*time.Millisecond || o.watched < span*slice || o.timeout < 0 {
		return o, fmt.Errorf("lasts must be at least 100ms, watched at least %v, and timeout not negative", span*slice)
	}
	for mode := range strings.SplitSeq(modes, ",") {
		if mode != "exact" && mode != "leased" {
			return o, fmt.Errorf("mode %q: must be exact or leased", mode)
		}
		o.modes = append(o.modes, mode)
	}
	if o.scenario, err = regexp.Compile("^(?:" + pattern + ")$"); err != nil {
		return o, err
	}
	var names []string
	for _, s := range scenarios() {
		if names = append(names, s.name); o.scenario.MatchString(s.name) {
			return o, nil
		}
	}
	return o, fmt.Errorf("scenario %q: must match one of %s", pattern, strings.Join(names, ", "))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	c := course{calm: 2 * time.Second, lasts: o.lasts, watched: o.watched, scale: 1, timeout: o.timeout}
	if c.programs.redis, err = program.Redis(ctx); err != nil {
		return err
	}
	if c.programs.sidecar, err = program.Sidecar(ctx, o.sidecar); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d sidecars; each fault lasts %v after %v of calm, and the clients go on for %v\n\n", sidecars, o.lasts, c.calm, o.watched)
	fmt.Fprintln(stdout, header())
	var failures []error
	for _, s := range scenarios() {
		if !o.scenario.MatchString(s.name) {
			continue
		}
		for _, mode := range o.modes {
			if s.holds > 0 && mode != o.modes[0] {
				continue // no lease has a limit on requests in flight
			}
			c.args = append([]string{"--sharing=" + mode}, o.more...)
			r, err := measure(ctx, s, c)
			if err != nil {
				return errors.Join(append(failures, fmt.Errorf("%s, %s: %w", s.name, mode, err))...)
			}
			fmt.Fprintln(stdout, r.row(&s, mode))
			for _, alarm := range r.alarms {
				failures = append(failures, fmt.Errorf("%s, %s: %s", s.name, mode, alarm))
			}
			if len(r.why) > 0 {
				fmt.Fprintf(stderr, "%s, %s: %v\n", s.name, mode, r.why)
			}
		}
	}
	return errors.Join(failures...)
}
