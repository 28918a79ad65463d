package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/bench/program"
)

// report writes a table of all shapes. A ratio compares to the first contender of the shape, or to
// the floor: the median of the ratios of all rounds.
type report struct {
	table *tabwriter.Writer
	o     options
}

func newReport(w io.Writer, o options) *report {
	who := "a client asks for one key"
	switch {
	case o.holds:
		who = "a client asks, for holders in turns, or for 20000 keys at random"
	case o.keys > 1:
		who = fmt.Sprintf("a client asks for %d keys at random", o.keys)
	case o.envoy:
		who = "h2load asks Envoy"
	case o.h2load:
		who = "h2load asks"
	}
	fmt.Fprintf(w, "server CPU per request in microseconds, median of %d rounds; %s over %s; times of answers in microseconds\n\n",
		o.rounds, who, o.network)
	r := &report{table: tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight), o: o}
	fmt.Fprint(r.table, "shape\tserver\tCPU\t")
	if o.redis {
		fmt.Fprint(r.table, "Redis\tboth\t")
	}
	fmt.Fprint(r.table, "ratio\tto floor\tlowest\thighest\tp50\tp99\tlate\t")
	if o.envoy {
		fmt.Fprint(r.table, "filter adds, p50\tp99\t")
	}
	if o.redis {
		fmt.Fprint(r.table, "alone\t")
	}
	fmt.Fprintln(r.table, "requests\t")
	return r
}

// shape adds the rows of a shape.
func (r *report) shape(s shape, requests int, all []contender) {
	floor := slices.IndexFunc(all, func(c contender) bool { return c.kind == "floor" })
	for i := range all {
		c := &all[i]
		fmt.Fprintf(r.table, "%v\t%s\t%s\t", s, c.name, microseconds(c.median(func(t turn) time.Duration { return t.server })))
		if r.o.redis {
			redis := c.median(func(t turn) time.Duration { return t.redis })
			fmt.Fprintf(r.table, "%s\t%s\t", microseconds(redis), microseconds(c.median(turn.both)))
		}
		late, alone, lowest, highest := 0, 0, c.turns[0].both(), c.turns[0].both()
		for _, t := range c.turns {
			late, alone = late+t.late, alone+t.alone
			lowest, highest = min(lowest, t.both()), max(highest, t.both())
		}
		toFloor := "-"
		if floor >= 0 {
			toFloor = ratio(c, &all[floor])
		}
		fmt.Fprintf(r.table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t", ratio(c, &all[0]), toFloor, microseconds(lowest), microseconds(highest),
			microseconds(c.median(turn.half)), microseconds(c.median(turn.most)), late)
		if r.o.envoy {
			without := &all[len(all)-1]
			half, most := c.median(turn.half)-without.median(turn.half), c.median(turn.most)-without.median(turn.most)
			fmt.Fprintf(r.table, "%s\t%s\t", microseconds(half), microseconds(most))
		}
		if r.o.redis {
			fmt.Fprintf(r.table, "%d\t", alone)
		}
		fmt.Fprintf(r.table, "%d\t\n", requests)
	}
}

func (r *report) end() error { return r.table.Flush() }

// median returns the middle of a value of all turns, at least one.
func (c *contender) median(value func(turn) time.Duration) time.Duration {
	all := make([]time.Duration, len(c.turns))
	for i, t := range c.turns {
		all[i] = value(t)
	}
	return program.Median(all)
}

// ratio returns the median of the ratios of all rounds, "-" without a time.
func ratio(c, to *contender) string {
	all := make([]float64, len(c.turns))
	for i, t := range c.turns {
		if t.both() == 0 || to.turns[i].both() == 0 {
			return "-"
		}
		all[i] = float64(t.both()) / float64(to.turns[i].both())
	}
	slices.Sort(all)
	n := len(all)
	return fmt.Sprintf("%.3f", (all[(n-1)/2]+all[n/2])/2)
}

func microseconds(d time.Duration) string { return program.Microseconds(d, 2) }
