package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/internal/lab/simulate"
	"github.com/weirproxy/weir/internal/printable"
)

// writeSimulation writes the result of a simulation for people. compared says that there were other
// rules.
func writeSimulation(w io.Writer, r *simulate.Result, compared bool) error {
	out := new(strings.Builder)
	const clock = "2006-01-02 15:04:05"
	fmt.Fprintf(out, "%s from %s to %s UTC (%v)\n", count(int(r.Requests), "request"), r.From.Format(clock), r.To.Format(clock),
		r.To.Sub(r.From).Round(time.Second))
	fmt.Fprintf(out, "denied: %s", share(r.Denied, r.Requests))
	if compared {
		fmt.Fprintf(out, ", before %s; %d newly denied, %d newly passed", share(r.DeniedBefore, r.Requests), r.NewlyDenied, r.NewlyPassed)
	}
	if r.Recorded > 0 {
		fmt.Fprintf(out, "; as recorded %s", share(r.RecordedDenied, r.Recorded))
	}
	out.WriteString("\n")
	if r.Refused > 0 {
		fmt.Fprintf(out, "not decided: %s with mistakes, the first: %s\n", count(int(r.Refused), "request"), r.Refusal)
	}
	if r.Evicted > 0 {
		fmt.Fprintf(out, "memory was full %s: the rules may deny more in truth; a larger --max-keys avoids that\n", count(int(r.Evicted), "time"))
	}
	out.WriteString("\n")
	writeRows(out, r, compared)
	writeWorst(out, r, compared)
	_, err := io.WriteString(w, out.String())
	return err
}

// writeRows writes a line for each rule.
func writeRows(out io.Writer, r *simulate.Result, compared bool) {
	shadowed := false
	for i := range r.Rules {
		shadowed = shadowed || r.Rules[i].Shadowed > 0
	}
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	head := "RULE\tREQUESTS\tDENIED"
	if compared {
		head += "\tBEFORE\tNEWLY DENIED\tNEWLY PASSED"
	}
	if shadowed {
		head += "\tSHADOWED"
	}
	head += "\tKEYS DENIED"
	if compared {
		head += "\tKEYS AFFECTED"
	}
	fmt.Fprintln(table, head+"\tPLACE")
	for i := range r.Rules {
		rule := &r.Rules[i]
		fmt.Fprintf(table, "%s\t%d\t%s", printable.Text(rule.Name()), rule.Requests, share(rule.Denied, rule.Requests))
		if compared {
			fmt.Fprintf(table, "\t%s\t%d\t%d", share(rule.DeniedBefore, rule.Requests), rule.NewlyDenied, rule.NewlyPassed)
		}
		if shadowed {
			fmt.Fprintf(table, "\t%d", rule.Shadowed)
		}
		more, place := "", "-"
		if rule.AtLeast {
			more = "+"
		}
		if rule.File != "" {
			place = fmt.Sprintf("%s:%d", rule.File, rule.Line)
		}
		fmt.Fprintf(table, "\t%d%s", rule.KeysDenied, more)
		if compared {
			fmt.Fprintf(table, "\t%d%s", rule.KeysAffected, more)
		}
		fmt.Fprintf(table, "\t%s\n", place)
	}
	_ = table.Flush() // a strings.Builder never fails
}

// writeWorst writes the keys that lose most.
func writeWorst(out io.Writer, r *simulate.Result, compared bool) {
	for i := range r.Rules {
		rule := &r.Rules[i]
		if len(rule.Worst) == 0 {
			continue
		}
		fmt.Fprintf(out, "\nkeys of %s that lose most:\n", printable.Text(rule.Name()))
		table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		for _, k := range rule.Worst {
			fmt.Fprintf(table, "  %s\t%d denied", printable.Text(k.Key), k.Denied)
			if compared {
				fmt.Fprintf(table, ", before %d", k.DeniedBefore)
			}
			fmt.Fprintln(table)
		}
		_ = table.Flush() // a strings.Builder never fails
	}
}

// share writes a number, and the part of all.
func share(some, all uint64) string {
	if some == 0 || all == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", some, percent(float64(some)/float64(all)))
}
