// Distance measures how many requests a fleet decides without a Redis that is far away, and how
// many hits above its limits it admits. Redis is a real one. A delay line in this process holds
// each answer for the time of a round trip. Each store of the fleet is as in a sidecar: Redis, with
// memory as the fallback, and no memory of denials.
//
//	go -C bench run ./distance
//
// Stores, delay line and clients share this process. A stall of the process fails requests, too. A
// goroutine that waits for a millisecond counts the stalls: wakes that are late. Distance needs
// redis-server or valkey-server, as scripts/redis.sh finds it. Distance exits 1 after an error, and
// judges no figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

func main() { os.Exit(program.Main("distance", run)) }

// options are the settings of a run.
type options struct {
	distances []distance
	rates     []int // requests per second, of all stores together
	duration  time.Duration
	stores    int
	timeout   time.Duration // of Redis
	deadline  time.Duration // of callers; 0: none
}

// distance is the time of a round trip beside Redis's own, at random between two bounds.
type distance struct{ least, most time.Duration }

func (d distance) String() string {
	if d.least == d.most {
		return d.least.String()
	}
	return fmt.Sprintf("%v-%v", d.least, d.most)
}

// parseDistance reads 6ms or 5ms-9ms.
func parseDistance(text string) (d distance, err error) {
	low, high, found := strings.Cut(text, "-")
	if !found {
		high = low
	}
	if d.least, err = time.ParseDuration(low); err != nil {
		return d, err
	}
	if d.most, err = time.ParseDuration(high); err != nil {
		return d, err
	}
	if d.least < 0 || d.most < d.least {
		return d, fmt.Errorf("distance %q: must be a time, or two in their order", text)
	}
	return d, nil
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var distances, rates string
	more, err := program.Parse("distance", args, stderr, func(flags *flag.FlagSet) {
		flags.StringVar(&distances, "distances", "6ms,5ms-9ms", "times of a round trip, with commas; each constant, or at random between two")
		flags.StringVar(&rates, "rates", "100,400,1500,6000", "requests per second of all stores together, with commas")
		flags.DurationVar(&o.duration, "duration", 5*time.Second, "time of each measurement")
		flags.IntVar(&o.stores, "stores", 2, "stores of the fleet")
		flags.DurationVar(&o.timeout, "redis-timeout", 10*time.Millisecond, "wait of a request without a deadline")
		flags.DurationVar(&o.deadline, "deadline", 0, "deadline of each request, as Envoy sends one; 0: none")
	})
	if err != nil {
		return o, err
	}
	if len(more) > 0 {
		return o, fmt.Errorf("unexpected argument %q", more[0])
	}
	for text := range strings.SplitSeq(distances, ",") {
		d, err := parseDistance(text)
		if err != nil {
			return o, err
		}
		o.distances = append(o.distances, d)
	}
	for text := range strings.SplitSeq(rates, ",") {
		rate, err := strconv.Atoi(text)
		if err != nil || rate < 1 {
			return o, fmt.Errorf("rate %q: must be at least 1", text)
		}
		o.rates = append(o.rates, rate)
	}
	if o.stores < 1 || o.duration < time.Second || o.deadline < 0 {
		return o, errors.New("stores must be at least 1, the duration 1s, the deadline not negative")
	}
	return o, nil
}

// run prints a row for each distance and rate.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	binary, err := program.Redis(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "distance")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	redis, err := parts.StartRedis(ctx, binary, dir, parts.RedisOptions{})
	if err != nil {
		return err
	}
	defer redis.Kill()
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	defer func() { _ = table.Flush() }() // the rows before an error, as with all that is printed
	fmt.Fprintln(table, "distance\tper second\trequests\twithout Redis\tshare\tover the limit\tp50\tp99\tlongest\tstalls over 1ms\t3ms\tlongest stall")
	for _, d := range o.distances {
		for _, rate := range o.rates {
			m, err := measure(ctx, o, redis.Address(), d, rate)
			if err != nil {
				return fmt.Errorf("%v at %d per second: %w", d, rate, err)
			}
			fmt.Fprintf(table, "%v\t%d\t%d\t%d\t%.2f %%\t%.2f %%\t%v\t%v\t%v\t%d\t%d\t%v\n", d, rate, m.requests, m.without,
				100*float64(m.without)/float64(max(1, m.requests)), 100*float64(m.over)/float64(max(1, m.limit)), short(m.p50), short(m.p99), short(m.longest),
				m.stalls.small, m.stalls.large, short(m.stalls.longest))
		}
	}
	return nil
}

func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
