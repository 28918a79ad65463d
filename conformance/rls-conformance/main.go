// Rls-conformance checks any server of Envoy's rate limit service against the cases of the suite.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/conformance/cases"
	"github.com/weirproxy/weir/conformance/internal/forms"
	"github.com/weirproxy/weir/conformance/internal/report"
	"github.com/weirproxy/weir/conformance/internal/runner"
	"github.com/weirproxy/weir/conformance/starters"
)

// errFailed says that a case failed; the report has the rest.
var errFailed = errors.New("cases failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command(os.Stdout, os.Stderr).ExecuteContext(ctx); err != nil {
		if !errors.Is(err, errFailed) {
			fmt.Fprintln(os.Stderr, "rls-conformance:", err)
			os.Exit(2)
		}
		os.Exit(1)
	}
}

func command(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "rls-conformance", Short: "Check a server of Envoy's rate limit service",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(runCommand(stdout, stderr), listCommand(stdout), explainCommand(stdout), rulesCommand(), startersCommand(stdout))
	return root
}

// options are the flags of run.
type options struct {
	target, start, starter, program, form, redis, profile, cases, report, output string
	provides                                                                     []string
	skew                                                                         time.Duration
	verbose                                                                      bool
}

func runCommand(stdout, stderr io.Writer) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use: "run", Short: "Play the cases against a target", Args: cobra.NoArgs,
		Long: "Play the cases against a target: one that runs at --target with the rules of `rls-conformance rules`, or one that this\n" +
			"program starts, by --starter or --start. Exit code 1 says that a case failed, 2 that the run was not possible.",
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), stdout, stderr) },
	}
	f := c.Flags()
	f.StringVar(&o.target, "target", "", "host:port of a service that runs")
	f.StringVar(&o.start, "start", "", "command line of a shell that starts the service on $RLS_PORT with $RLS_RULES")
	f.StringVar(&o.starter, "starter", "", "a `name` that the command starters prints, in place of --start")
	f.StringVar(&o.program, "program", "", "the program that --starter starts, by default the one on the PATH")
	f.StringVar(&o.form, "form", "", "form of the rules: "+strings.Join(forms.All(), ", ")+` (default "reference", or of the starter)`)
	f.StringVar(&o.redis, "redis", "", "redis-server to start for the target; adds the cases of outages")
	f.StringSliceVar(&o.provides, "provides", nil, "features of the target: "+strings.Join(cases.Features(), ", "))
	f.StringVar(&o.profile, "profile", string(cases.Strict), "reference, strict (with reference) or weir (with both)")
	f.StringVar(&o.cases, "cases", "", "regular expression that the names of the cases match")
	f.StringVar(&o.report, "report", "text", strings.Join(report.Forms(), ", "))
	f.StringVar(&o.output, "output", "", "file of the report; by default standard output")
	f.DurationVar(&o.skew, "skew", 0, "largest difference between the clocks of target and runner")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print each case as it ends")
	return c
}

// apply takes the words of a starter where no flag has any.
func (o *options) apply() error {
	if o.starter == "" {
		if o.form == "" {
			o.form = forms.Reference
		}
		return nil
	}
	if o.start != "" || o.target != "" {
		return errors.New("--starter stands in place of --start and --target")
	}
	s, err := starters.Find(o.starter)
	if err != nil {
		return err
	}
	if o.program == "" {
		o.program = s.Program
	}
	if err := os.Setenv("RLS_PROGRAM", o.program); err != nil {
		return err
	}
	if s.Redis == "required" && o.redis == "" {
		return fmt.Errorf("%s needs Redis: --redis must be the path of a redis-server", s.Name)
	}
	if s.Redis == "never" {
		o.redis = ""
	}
	o.start, o.provides = s.Command, append(o.provides, s.Has...)
	if o.form == "" {
		o.form = s.Form
	}
	return nil
}

// check returns every mistake of the flags.
func (o *options) check() error {
	var failed []error
	if (o.target == "") == (o.start == "") {
		failed = append(failed, errors.New("one of --target, --start and --starter is needed"))
	}
	if !slices.Contains(forms.All(), o.form) {
		failed = append(failed, fmt.Errorf("--form %q must be one of %s", o.form, strings.Join(forms.All(), ", ")))
	}
	if !slices.Contains(cases.Profiles(), cases.Profile(o.profile)) {
		failed = append(failed, fmt.Errorf("--profile %q must be one of %v", o.profile, cases.Profiles()))
	}
	if !slices.Contains(report.Forms(), o.report) {
		failed = append(failed, fmt.Errorf("--report %q must be one of %s", o.report, strings.Join(report.Forms(), ", ")))
	}
	for _, feature := range o.provides {
		if !slices.Contains(cases.Features(), feature) {
			failed = append(failed, fmt.Errorf("--provides %q must be one of %s", feature, strings.Join(cases.Features(), ", ")))
		}
	}
	if _, err := regexp.Compile(o.cases); err != nil {
		failed = append(failed, fmt.Errorf("--cases: %w", err))
	}
	return errors.Join(failed...)
}

func (o *options) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.apply(); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	documents, err := cases.Load()
	if err != nil {
		return err
	}
	pattern := regexp.MustCompile(o.cases)
	profile := cases.Profile(o.profile)
	r := runner.Runner{Target: o.target, Start: o.start, Form: o.form, Redis: o.redis, Features: o.provides, Skew: o.skew, Workers: 16}
	if o.verbose {
		r.Progress = func(result runner.Result) { fmt.Fprintf(stderr, "%-6s %s\n", result.Outcome, result.ID) }
	}
	results, err := r.Run(ctx, documents, func(c *cases.Case) bool { return profile.Includes(c.Profile) && pattern.MatchString(c.ID()) })
	if err != nil {
		return err
	}
	name := o.starter
	if name == "" {
		name = o.target
	}
	if name == "" {
		name = o.start
	}
	written := report.Report{Target: name, Profile: profile, When: time.Now(), Results: results}
	if err := o.write(written, stdout); err != nil {
		return err
	}
	if written.Count(runner.Fail, "") > 0 {
		return errFailed
	}
	return nil
}

func (o *options) write(r report.Report, stdout io.Writer) error {
	if o.output == "" {
		return r.Write(stdout, o.report)
	}
	f, err := os.Create(o.output)
	if err != nil {
		return err
	}
	if err := r.Write(f, o.report); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

func listCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the cases with their claims", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			documents, err := cases.Load()
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
			for _, d := range documents {
				for i := range d.Cases {
					c := &d.Cases[i]
					fmt.Fprintf(table, "%s\t%s\t%s\n", c.ID(), c.Profile, c.Claim)
				}
			}
			return table.Flush()
		},
	}
}

func explainCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "explain CASE", Short: "Print a case: its claim, the source of its claim, rules and steps", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			documents, err := cases.Load()
			if err != nil {
				return err
			}
			for _, d := range documents {
				for i := range d.Cases {
					if d.Cases[i].ID() == args[0] {
						return explain(stdout, &d.Cases[i])
					}
				}
			}
			return fmt.Errorf("there is no case %q: see `rls-conformance list`", args[0])
		},
	}
}

func explain(w io.Writer, c *cases.Case) error {
	fmt.Fprintf(w, "%s (%s)\n%s\nfrom: %s\n", c.ID(), c.Profile, c.Claim, c.From)
	if needs := c.Features(); len(needs) > 0 {
		fmt.Fprintf(w, "needs: %s\n", strings.Join(needs, ", "))
	}
	for _, d := range c.Document.Domains {
		if d.Domain != c.Domain {
			continue
		}
		text, err := d.Text()
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\nrules:\n%s", text)
	}
	fmt.Fprintln(w, "\nsteps:")
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	return encoder.Encode(c.Steps)
}

func rulesCommand() *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "rules DIRECTORY", Short: "Write the rules of the cases, for a target that somebody else starts", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if !slices.Contains(forms.All(), form) {
				return fmt.Errorf("--form %q must be one of %s", form, strings.Join(forms.All(), ", "))
			}
			documents, err := cases.Load()
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			return forms.Write(form, args[0], args[0], "v1", runner.Domains(documents), nil)
		},
	}
	c.Flags().StringVar(&form, "form", forms.Reference, strings.Join(forms.All(), ", "))
	return c
}

func startersCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "starters", Short: "List the services that run can start by name", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all, err := starters.Load()
			if err != nil {
				return err
			}
			for _, s := range all {
				fmt.Fprintf(stdout, "%s\n    %s\n    program %s, rules in the form %s, Redis: %s\n    %s\n",
					s.Name, s.About, s.Program, s.Form, s.Redis, s.Command)
			}
			return nil
		},
	}
}
