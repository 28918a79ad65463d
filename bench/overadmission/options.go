package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// Where Redis is.
const (
	single   = "single"
	sentinel = "sentinel"
	cluster  = "cluster"
)

// How clients ask.
const (
	even   = "even"   // all sidecars at once
	moving = "moving" // one sidecar at a time
	bursts = "bursts" // one sidecar at a time, or nobody
)

// limits are the limits of each algorithm.
type limits struct {
	keys     int
	requests int
	burst    int // of token_bucket
	period   time.Duration
	several  bool // two for each request
}

// options are the settings of a run.
type options struct {
	topologies []string
	algorithms []algorithms.Algorithm
	decisions  int
	duration   time.Duration
	warm       time.Duration
	clients    int
	sidecars   int
	limits     limits
	defaults   bool
	load       string
	move       time.Duration
	rate       int // 0: as fast as answers come
	fault      string
	away       time.Duration // 0: no outage
	hung       bool          // in the outage Redis is stopped, not unreachable
	mostOver   float64       // percent
	leastUsed  float64       // percent
	sidecar    string
	timeout    time.Duration
	more       []string // arguments of serve
}

// rows are measurements with a name, as arguments of this program.
func rows() map[string][]string {
	buckets := strings.Fields("-algorithm=token_bucket -requests=100 -burst=100 -period=1s -n=100000000 -duration=15s -defaults -least-used=0")
	with := func(args ...string) []string { return append(slices.Clone(buckets), args...) }
	use := strings.Fields("-warm=2s -algorithm=token_bucket -requests=500 -burst=1000 -period=1s -n=100000000 " +
		"-duration=20s -defaults -clients=32")
	outage := strings.Fields("-requests=10000 -burst=10000 -period=24h -clients=64 -defaults -away=30s -most-over=0.5")
	all := map[string][]string{
		"day":    strings.Fields("-requests=1000 -burst=1000 -period=24h -n=200000 -clients=128 -defaults -most-over=0.5 -least-used=0"),
		"32":     with("-clients=128", "-most-over=0.5"),
		"128":    with("-clients=512", "-most-over=2"),
		"even":   append(slices.Clone(use), "-rate=8000", "-keys=4", "-least-used=99"),
		"moving": append(slices.Clone(use), "-rate=8000", "-keys=4", "-least-used=97", "-load=moving"),
		"bursts": append(slices.Clone(use), "-rate=8000", "-keys=4", "-least-used=0", "-load=bursts"),
		"away":   outage,
		"hung":   append(slices.Clone(outage), "-hung"),
	}
	for name := range faults() {
		// A sidecar that asks Redis first after an outage does not find the shares of the others there.
		all[name] = with("-clients=128", "-most-over=4", "-fault="+name)
	}
	return all
}

// rowNames returns the names of rows, for people.
func rowNames() string { return strings.Join(slices.Sorted(maps.Keys(rows())), ", ") }

// expand replaces a leading -row=NAME by the arguments of that row. Later arguments win over these.
func expand(args []string) ([]string, error) {
	if len(args) == 0 {
		return args, nil
	}
	name, isRow := strings.CutPrefix(strings.TrimLeft(args[0], "-"), "row=")
	if !isRow {
		return args, nil
	}
	row, ok := rows()[name]
	if !ok {
		return nil, fmt.Errorf("row %q: must be one of %s", name, rowNames())
	}
	return append(row, args[1:]...), nil
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var topologies, names string
	args, err := expand(args)
	if err != nil {
		return o, err
	}
	o.more, err = program.Parse("overadmission", args, stderr, func(flags *flag.FlagSet) {
		flags.String("row", "", "a measurement with a name, as the first argument: "+rowNames())
		flags.StringVar(&topologies, "topology", single, "where Redis is: single, sentinel, cluster, or several of them with commas")
		flags.StringVar(&names, "algorithm", "", "one algorithm, or several with commas; empty for all")
		flags.IntVar(&o.decisions, "n", 1_000_000, "decisions of each algorithm")
		flags.DurationVar(&o.duration, "duration", 0, "longest time of each algorithm; 0: until all decisions are made")
		flags.DurationVar(&o.warm, "warm", 0, "time at the start that does not count for the use of the limits: full buckets empty")
		flags.IntVar(&o.clients, "clients", 64, "clients, each with one request at a time on a connection of its own")
		flags.IntVar(&o.sidecars, "sidecars", 4, "sidecars, over which the clients are spread")
		flags.IntVar(&o.limits.keys, "keys", 10, "keys, of which the clients ask at random")
		flags.IntVar(&o.limits.requests, "requests", 150, "hits per period of each key")
		flags.IntVar(&o.limits.burst, "burst", 0, "burst of token_bucket; 0: a fifth of the hits per period")
		flags.DurationVar(&o.limits.period, "period", 500*time.Millisecond, "period of the limits")
		flags.BoolVar(&o.limits.several, "several", false, "two limits per request, with keys that a cluster puts in different slots")
		flags.BoolVar(&o.defaults, "defaults", false, "leave --redis-timeout and --on-store-error as users have them; else a second, and deny")
		flags.StringVar(&o.load, "load", even, "even: all sidecars are asked at once; moving: one at a time; bursts: one at a time, or nobody")
		flags.DurationVar(&o.move, "move", 250*time.Millisecond, "how long one sidecar is asked under a load that moves")
		flags.IntVar(&o.rate, "rate", 0, "requests per second of all clients; 0: as fast as answers come")
		flags.StringVar(&o.fault, "fault", "", "a fault that comes again and again, with a single Redis: "+strings.Join(faultNames(), ", "))
		flags.DurationVar(&o.away, "away", 0, "Redis is away for so long, in the middle third of the run; the report is another then")
		flags.BoolVar(&o.hung, "hung", false, "with -away, Redis is stopped (SIGSTOP), in place of connections that are reset and refused")
		flags.Float64Var(&o.mostOver, "most-over", 0, "percent of the admitted hits that may be over the limits")
		flags.Float64Var(&o.leastUsed, "least-used", -1,
			"percent of one process's admitted hits that must be admitted; below 0: 98, and 95 with -several")
		flags.StringVar(&o.sidecar, "sidecar", "", "a binary to measure instead of building ./cmd/sidecar")
		flags.DurationVar(&o.timeout, "timeout", time.Hour, "longest time of the run")
	})
	if err != nil {
		return o, err
	}
	return o, o.check(topologies, names)
}

// check reads the lists, and refuses numbers that make no run.
func (o *options) check(topologies, names string) error {
	if min(o.decisions, o.clients, o.sidecars, o.limits.keys, o.limits.requests) < 1 || o.limits.period < algorithms.MinPeriod {
		return errors.New("n, clients, sidecars, keys and requests must be at least 1, the period at least 1ms")
	}
	if o.duration < 0 || o.limits.burst < 0 || o.move < time.Millisecond || o.rate < 0 || o.away < 0 || o.warm < 0 {
		return errors.New("duration, warm, burst, rate and away must not be negative, move must be at least 1ms")
	}
	if !slices.Contains([]string{even, moving, bursts}, o.load) {
		return fmt.Errorf("load %q: must be even, moving or bursts", o.load)
	}
	if _, ok := faults()[o.fault]; !ok && o.fault != "" {
		return fmt.Errorf("fault %q: must be one of %s", o.fault, strings.Join(faultNames(), ", "))
	}
	if topologies != single && (o.fault != "" || o.away > 0) {
		return errors.New("fault and away need the topology single")
	}
	if o.leastUsed < 0 {
		o.leastUsed = 98
		if o.limits.several {
			o.leastUsed = 95
		}
	}
	for name := range strings.SplitSeq(topologies, ",") {
		if !slices.Contains([]string{single, sentinel, cluster}, name) {
			return fmt.Errorf("topology %q: must be single, sentinel or cluster", name)
		}
		o.topologies = append(o.topologies, name)
	}
	if names == "" {
		o.algorithms = algorithms.RateAlgorithms()
		return nil
	}
	for name := range strings.SplitSeq(names, ",") {
		a, err := algorithms.ParseAlgorithm(name)
		if err != nil {
			return fmt.Errorf("algorithm %w", err)
		}
		o.algorithms = append(o.algorithms, a)
	}
	return nil
}
