package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/lab/simulate"
	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

type simulateFlags struct {
	rules, against []string
	bounds         ruleBounds
	output         string
	maxKeys        int
	maxDenied      percentage
}

func newSimulate() *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate --rules PATH [--against PATH] [--max-denied PERCENT] TRAFFIC…",
		Short: "Decide recorded requests under other rules, and say who would be denied",
		Long: `Decide recorded requests under the rules of --rules, in virtual time, as a sidecar in memory mode would have done. With --against the
command decides them under those rules too, and compares. All keys are full at the first request. Grants do not count: a record has none.

` + trafficHelp + `

With --max-denied the exit code is 3 if the rules deny more: of all requests, or of the requests of one rule. With --against only
requests count that pass under its rules.`,
		Example: `  sidecar simulate --rules new.yaml --against rules/ --max-denied 0.5% /var/lib/weir-record
  zstdcat traffic.jsonl.zst | sidecar simulate --rules new.yaml -`,
		Args: arguments(1, -1, "TRAFFIC…: files or directories of recorded requests, or - for standard input"),
		RunE: f.simulate,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.rules, "rules", nil, "rule `path`, a file or directory; repeatable")
	flags.StringArrayVar(&f.against, "against", nil, "rule `path` of the rules to compare with; repeatable")
	flags.Var(&f.maxDenied, "max-denied", "largest `percentage` of denied requests, such as 0.5%")
	flags.IntVar(&f.maxKeys, "max-keys", memstore.DefaultMaxKeys, "as of serve: most places for keys in memory")
	addOutput(cmd, &f.output, "text|json")
	addBounds(cmd, &f.bounds)
	return cmd
}

// simulate decides the requests of the arguments, and writes the result.
func (f *simulateFlags) simulate(cmd *cobra.Command, args []string) error {
	if len(f.rules) == 0 {
		return usage("--rules: is missing, must be a rule file or directory")
	}
	o := simulate.Options{MaxKeys: f.maxKeys}
	var err error
	if o.Rules, _, _, err = loadRules(f.rules, "", f.bounds); err != nil {
		return err
	}
	compared := len(f.against) > 0
	if compared {
		if o.Against, _, _, err = loadRules(f.against, "", f.bounds); err != nil {
			return err
		}
	}
	s, err := simulate.New(o)
	if err != nil {
		return usage("%w", err)
	}
	defer s.Close()
	if err := readTraffic(cmd, args, s.Decide); err != nil {
		return err
	}
	r := s.Result()
	if f.output == outputJSON {
		err = writeJSON(cmd.OutOrStdout(), r)
	} else {
		err = writeSimulation(cmd.OutOrStdout(), &r, compared)
	}
	if err != nil || !f.maxDenied.given {
		return err
	}
	denied := "denied"
	if compared {
		denied = "newly denied" // other denials do not count
	}
	excess := r.Exceeds(f.maxDenied.part)
	for _, e := range excess {
		cmd.PrintErrf("%s: %s of the requests are %s, more than --max-denied %s\n", e.Where, percent(e.Part), denied, f.maxDenied.String())
	}
	if len(excess) > 0 {
		return reported(exitNone)
	}
	return nil
}

// trafficHelp describes the arguments that are traffic.
const trafficHelp = `TRAFFIC is recorded requests: files of JSON lines, plain or compressed with zstd, directories of such files, or - for standard input.
The requests of all files are merged by their times. serve --record writes such files; docs/records.md describes the lines.`

// readTraffic passes the requests of files, directories and standard input on, in the order of
// their instants. Notes about them go to standard error, and on a terminal the progress. A mistake
// in them is a failure.
func readTraffic(cmd *cobra.Command, paths []string, each func(*records.Record)) error {
	traffic, err := records.Open(cmd.Context(), paths, cmd.InOrStdin())
	if err != nil {
		return bad(err, exitUsage)
	}
	defer traffic.Close()
	bar := newProgress(cmd.ErrOrStderr())
	n, err := passOn(traffic, each, bar)
	bar.end()
	notes := traffic.Notes()
	for i, note := range notes {
		if i == maxNotes {
			cmd.PrintErrf("note: and %d notes more\n", len(notes)-i)
			break
		}
		cmd.PrintErrf("note: %v\n", note)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case err != nil:
		return bad(err, exitUsage)
	case n == 0:
		return usage("%s: there are no requests in %s", cmd.Name(), strings.Join(paths, ", "))
	}
	return nil
}

// maxNotes bounds the notes about traffic that are printed.
const maxNotes = 20

func passOn(traffic *records.Traffic, each func(*records.Record), bar *progress) (n int, err error) {
	for r, err := range traffic.All() {
		if err != nil {
			return n, err
		}
		each(r)
		if n++; n%4096 == 0 {
			read, all := traffic.Progress()
			bar.show(n, read, all)
		}
	}
	return n, nil
}

// percentage is a flag such as 0.5%.
type percentage struct {
	part  float64 // from 0 to 1
	given bool
}

// Set implements [pflag.Value].
func (p *percentage) Set(s string) error {
	number, found := strings.CutSuffix(s, "%")
	n, err := strconv.ParseFloat(number, 64)
	if !found || err != nil || !(n >= 0 && n <= 100) {
		return fmt.Errorf("%q: must be a percentage from 0%% to 100%%, such as 0.5%%", s)
	}
	p.part, p.given = n/100, true
	if nearest, err := strconv.ParseFloat(number+"e-2", 64); err == nil { // 0.7/100 is less than 7/1000
		p.part = nearest
	}
	return nil
}

// String implements [pflag.Value].
func (p *percentage) String() string {
	if !p.given {
		return ""
	}
	short, _ := strconv.ParseFloat(strconv.FormatFloat(100*p.part, 'g', 15, 64), 64) // 100*0.29 is less than 29
	return strconv.FormatFloat(short, 'f', -1, 64) + "%"
}

// Type implements [pflag.Value].
func (p *percentage) Type() string { return "percentage" }

// percent writes a part with two digits behind the point; a small part that is not 0 does not
// become 0.
func percent(part float64) string {
	if part > 0 && part < 0.0001 {
		return "<0.01%"
	}
	return strconv.FormatFloat(100*part, 'f', 2, 64) + "%"
}

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
	writeCarried(out, r)
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

// maxAnew bounds the limits that start anew and are named.
const maxAnew = 10

// writeCarried writes which changed limits would keep the used hits in a reload.
func writeCarried(out io.Writer, r *simulate.Result) {
	anew := r.StartAnew
	if r.CarryOver+len(anew) == 0 {
		return
	}
	carry, start := "carry", "start"
	if r.CarryOver == 1 {
		carry = "carries"
	}
	if len(anew) == 1 {
		start = "starts"
	}
	fmt.Fprintf(out, "a reload: %s %s over, %d %s anew", count(r.CarryOver, "changed limit"), carry, len(anew), start)
	separator := ": "
	for _, name := range anew[:min(len(anew), maxAnew)] {
		fmt.Fprint(out, separator, printable.Text(name))
		separator = ", "
	}
	if more := len(anew) - maxAnew; more > 0 {
		fmt.Fprintf(out, ", and %d more", more)
	}
	fmt.Fprintln(out)
}

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
