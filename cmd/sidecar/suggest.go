package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/lab/simulate"
	"github.com/weirproxy/weir/internal/lab/suggest"
	"github.com/weirproxy/weir/internal/printable"
	"github.com/weirproxy/weir/pkg/descriptors"
)

type suggestFlags struct {
	rules        []string
	bounds       ruleBounds
	output, unit string
	maxKeys      int
	deny, keys   percentage
}

func newSuggest() *cobra.Command {
	f := suggestFlags{deny: percentage{part: 0.001, given: true}, keys: percentage{part: 0.999, given: true}}
	cmd := &cobra.Command{
		Use:   "suggest [--rules PATH] [--deny PERCENT] [--keys PERCENT] TRAFFIC…",
		Short: "Say which limits would deny little of recorded requests",
		Long: `Say which limits would deny at most --deny of the hits of recorded requests, and would never deny --keys of the keys. The command prints
rules in YAML, ready to paste, for the rules of --rules that the requests meet. Descriptors that no rule limits get one rule for each list of
keys. Comments tell how many hits the keys have in a second, a minute, an hour and a day.

A limit whose period is longer than the record stays as it is, because the record says nothing about it. The output says so. A new limit is
then per shorter unit. Record for longer than the longest period.

Then the command decides the requests anew under these rules, and makes limits larger that deny more. Requests from standard input can be
read only once, and are not decided anew.

` + trafficHelp,
		Example: `  sidecar suggest --rules rules/ /var/lib/weir-record`,
		Args:    arguments(1, -1, "TRAFFIC…: files or directories of recorded requests, or - for standard input"),
		RunE:    f.suggest,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.rules, "rules", nil, "rule `path` of the rules in force, a file or directory; repeatable")
	flags.Var(&f.deny, "deny", "largest `percentage` of hits that a limit may deny")
	flags.Var(&f.keys, "keys", "smallest `percentage` of keys that a limit never denies")
	flags.StringVar(&f.unit, "unit", "minute", "longest `unit` of limits without a rule: second, minute, hour or day")
	flags.IntVar(&f.maxKeys, "max-keys", suggest.DefaultMaxKeys, "most keys that are counted, of about 300 bytes each")
	addOutput(cmd, &f.output, "text|json; the text is YAML")
	addBounds(cmd, &f.bounds)
	return cmd
}

func (f *suggestFlags) suggest(cmd *cobra.Command, args []string) error {
	goal := suggest.Goal{Deny: f.deny.part, Keys: f.keys.part}
	var known bool
	if goal.Unit, known = descriptors.ParseUnit(f.unit); !known || goal.Unit > descriptors.Day {
		return usage("--unit: %q: must be second, minute, hour or day", f.unit)
	}
	if f.maxKeys < 1 {
		return usage("--max-keys: %d: must be at least 1", f.maxKeys)
	}
	o := suggest.Options{MaxKeys: f.maxKeys}
	if len(f.rules) > 0 {
		var err error
		if o.Rules, _, _, err = loadRules(f.rules, "", f.bounds); err != nil {
			return err
		}
	}
	c := suggest.New(o)
	if err := readTraffic(cmd, args, c.Add); err != nil {
		return err
	}
	r, err := c.Result(goal)
	if err != nil {
		return bad(err, exitUsage)
	}
	if readTwice(args) {
		if err := checkSuggestion(cmd, args, r, goal); err != nil {
			return err
		}
	}
	return writeSuggestion(cmd.OutOrStdout(), r, goal, f.output)
}

// readTwice reports whether traffic can be read twice: it is in files and directories.
func readTwice(paths []string) bool {
	for _, path := range paths {
		if info, err := os.Stat(path); path == "-" || err != nil || !info.Mode().IsRegular() && !info.IsDir() {
			return false
		}
	}
	return true
}

// maxChecks bounds the times that the traffic is decided anew.
const maxChecks = 10

// checkSuggestion decides the traffic under the suggested rules, and raises the limits that deny
// more than the goal allows, until none does.
func checkSuggestion(cmd *cobra.Command, paths []string, r *suggest.Result, goal suggest.Goal) error {
	for range maxChecks {
		rules, err := suggestedRules(r)
		if err != nil {
			return err
		}
		s, err := simulate.New(simulate.Options{Rules: rules})
		if err != nil {
			return err
		}
		err = decideAgain(cmd, paths, s)
		result := s.Result()
		s.Close()
		if err != nil {
			return err
		}
		if raised := r.Check(&result, goal); !raised {
			return nil
		}
	}
	return nil
}

func suggestedRules(r *suggest.Result) (*descriptors.Rules, error) {
	documents, err := r.Documents()
	if err != nil {
		return nil, err
	}
	var sources []descriptors.Source
	for _, d := range documents {
		sources = append(sources, descriptors.Source{Name: "suggested for " + d.Domain, Data: []byte(d.YAML), Table: r.Table})
	}
	rules, _, err := descriptors.Load(sources, descriptors.Options{})
	return rules, err
}

// decideAgain decides the traffic, without the notes about it.
func decideAgain(cmd *cobra.Command, paths []string, s *simulate.Simulation) error {
	traffic, err := records.Open(cmd.Context(), paths, nil)
	if err != nil {
		return bad(err, exitUsage)
	}
	defer traffic.Close()
	bar := newProgress(cmd.ErrOrStderr())
	defer bar.end()
	if _, err := passOn(traffic, s.Decide, bar); err != nil {
		return bad(err, exitUsage)
	}
	return nil
}

// writeSuggestion writes the suggestions as YAML with comments, or as JSON.
func writeSuggestion(w io.Writer, r *suggest.Result, goal suggest.Goal, format string) error {
	documents, err := r.Documents()
	if err != nil {
		return err
	}
	if format == outputJSON {
		return writeJSON(w, struct {
			*suggest.Result
			Documents []suggest.Document `json:"documents"`
		}{r, documents})
	}
	out := new(strings.Builder)
	const clock = "2006-01-02 15:04:05"
	fmt.Fprintf(out, "# %s from %s to %s UTC (%v).\n", count(int(r.Requests), "request"),
		r.From.Format(clock), r.To.Format(clock), r.To.Sub(r.From).Round(time.Second))
	fmt.Fprintf(out, "# Each limit denies at most %s of the hits, and never denies %s of the keys.\n", exact(goal.Deny), exact(goal.Keys))
	if r.Unit != goal.Unit {
		fmt.Fprintf(out, "# The record has no whole %s, and says nothing about so long a limit: new limits are per %s.\n", goal.Unit, r.Unit)
	}
	writeShapes(out, r)
	writeSkipped(out, r)
	if len(documents) > 1 {
		fmt.Fprintf(out, "# These are %d documents: each needs a file of its own.\n", len(documents))
	}
	for i, d := range documents {
		if i > 0 {
			out.WriteString("---\n")
		}
		out.WriteString(d.YAML)
	}
	_, err = io.WriteString(w, out.String())
	return err
}

func writeShapes(out io.Writer, r *suggest.Result) {
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "#\n# RULE\tKEYS\tHITS\tNOW\tSUGGESTED\tDENIES\tKEYS DENIED")
	for _, s := range r.Shapes {
		var now, then []string
		for _, l := range s.Limits {
			now = append(now, fmt.Sprint(l.Now))
			text := fmt.Sprintf("%d/%s", l.Requests, suggest.Length(l.Period))
			if l.Stays {
				text += " stays"
			}
			then = append(then, text)
		}
		if s.New {
			now = []string{"-"}
		}
		denies, keys := "not checked", "-"
		if s.Checked {
			denies, keys = percent(s.Denied), fmt.Sprint(s.KeysDenied)
		}
		fmt.Fprintf(table, "# %s\t%d\t%d\t%s\t%s\t%s\t%s\n",
			printable.Text(s.Name()), s.Keys, s.Hits, strings.Join(now, ", "), strings.Join(then, ", "), denies, keys)
	}
	_ = table.Flush() // a strings.Builder never fails
	fmt.Fprintln(out, "#")
}

// writeSkipped writes how many descriptors are not in the counts, as comments.
func writeSkipped(out io.Writer, r *suggest.Result) {
	for _, k := range []struct {
		n    uint64
		what string
	}{
		{r.Skipped.Overrides, "a limit that came with the request"},
		{r.Skipped.Refunds, "a refund"},
		{r.Skipped.Probes, "hits 0"},
		{r.Skipped.Holders, "a rule with hold"},
		{r.Skipped.Unlimited, "an unlimited rule"},
		{r.Skipped.Banned, "a ban (a limit of 0)"},
		{r.Skipped.Tabled, "numbers in a table"},
		{r.Skipped.Untracked, "no room for its key: a larger --max-keys counts more"},
	} {
		if k.n > 0 {
			fmt.Fprintf(out, "# not counted: %s with %s\n", count(int(k.n), "descriptor"), k.what)
		}
	}
}

// exact writes a part as a percentage with all digits.
func exact(part float64) string {
	p := percentage{part: part, given: true}
	return p.String()
}
