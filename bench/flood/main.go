// Flood sends new keys to a store in memory at its bound, as an attacker who invents keys. Beside
// them flood tries keys again that are denied. Flood measures the CPU time of a decision from the
// first to the last key, the longest pauses, and the resident memory.
//
//	go -C bench run ./flood -keys 100000000
//
// Times are CPU times, because other programs may use the machine. Flood exits 1 when a denied key
// was free again, or when there were more keys than the bound.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/pkg/algorithms"
)

func main() { os.Exit(program.Main("flood", run)) }

// options are the settings of a run.
type options struct {
	keys       int
	maxKeys    int
	parts      int
	denied     int
	algorithms []algorithms.Algorithm
	weights    []int64
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var names, weights string
	more, err := program.Parse("flood", args, stderr, func(flags *flag.FlagSet) {
		flags.IntVar(&o.keys, "keys", 5_000_000, "keys of each flood")
		flags.IntVar(&o.maxKeys, "max-keys", 1_000_000, "bound of the store")
		flags.IntVar(&o.parts, "parts", 4, "parts of the flood at the bound, measured apart")
		flags.IntVar(&o.denied, "denied", 1000, "denied keys that are tried again")
		flags.StringVar(&names, "algorithms", strings.Join(rates(), ","), "algorithms of rate limits, separated by commas")
		flags.StringVar(&weights, "weights", "1,7", "hits of a request, separated by commas")
	})
	if err != nil {
		return o, err
	}
	for name := range strings.SplitSeq(names, ",") {
		a, err := algorithms.ParseAlgorithm(name)
		if err == nil && a == algorithms.Concurrency {
			err = fmt.Errorf("%q is no rate limit, must be one of %s", name, strings.Join(rates(), ", "))
		}
		if err != nil {
			return o, err
		}
		o.algorithms = append(o.algorithms, a)
	}
	for text := range strings.SplitSeq(weights, ",") {
		w, err := strconv.ParseInt(text, 10, 64)
		if err != nil || w < 1 || w > requests {
			return o, fmt.Errorf("weight %q: must be a whole number from 1 to %d", text, requests)
		}
		o.weights = append(o.weights, w)
	}
	if len(more) > 0 || o.parts < 1 || o.denied < 1 || o.maxKeys <= o.denied || o.keys < 2*o.maxKeys {
		return o, errors.New("parts and denied must be at least 1, max-keys more than denied, and keys at least twice max-keys")
	}
	return o, nil
}

// rates returns the names of the algorithms of rate limits.
func rates() (names []string) {
	for _, a := range algorithms.RateAlgorithms() {
		names = append(names, a.String())
	}
	return names
}

// gcPercent is about the GOGC that a sidecar sets itself for the live heap of a million keys.
const gcPercent = 50

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	fmt.Fprintf(stdout, "%d keys into a bound of %d, %d denied keys tried again; CPU time per decision in nanoseconds, pauses in milliseconds\n\n",
		o.keys, o.maxKeys, o.denied)
	fmt.Fprintf(stdout, row, "algorithm", "hits", "time", "below", "last/first", "longest CPU", "longest", "CPU>5ms", "tries", "freed", "most RSS", "at the bound, by parts")
	var bad []error
	for _, a := range o.algorithms {
		for _, weight := range o.weights {
			r, err := measure(ctx, o, a, weight)
			if err != nil {
				return err
			}
			r.print(stdout)
			if r.freed > 0 || r.keys > o.maxKeys {
				bad = append(bad, fmt.Errorf("%v, %d hits: %d denied keys were free again, and the store had %d keys", a, weight, r.freed, r.keys))
			}
			debug.FreeOSMemory()
		}
	}
	return errors.Join(bad...)
}

// row is the format of a row.
const row = "%-22v %4v %8v %6v %10v %12v %8v %8v %8v %6v %9v  %v\n"

// print writes the row of a flood.
func (r *result) print(w io.Writer) {
	var parts []string
	for _, p := range r.parts {
		parts = append(parts, fmt.Sprintf("%.0f", p))
	}
	milliseconds := func(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1e3) }
	fmt.Fprintf(w, row, r.algorithm, r.weight, r.took.Round(time.Second), fmt.Sprintf("%.0f", r.below),
		fmt.Sprintf("%.2f", r.parts[len(r.parts)-1]/r.parts[0]), milliseconds(r.longestCPU), milliseconds(r.longest), r.pauses,
		r.tries, r.freed, fmt.Sprintf("%d MiB", r.resident>>20), strings.Join(parts, " "))
}
