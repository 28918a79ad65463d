// Command sidecar is Weir: a rate limit service for Envoy to run beside it.
//
// The command serve reads the settings (flags, WEIR_* environment variables, a settings file) and
// runs package app. `check`, `test`, `match`, `replay`, `simulate` and `suggest` try out rules and
// algorithms without a server. `match --server`, `watch`, `top`, `quotas`, `record`, `grant`,
// `grants`, `usage` and `reset` ask a running sidecar.
//
// The exit code is 0 for success, and 1 for a failure or a mistake in settings or rules. Exit code
// 2 is for a mistake in the command line or in an input. Exit code 3 says that match found no rule,
// or that simulate denies more than --max-denied.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirproxy/weir/internal/version"
)

func main() {
	os.Exit(report(os.Stderr, run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)))
}

// run runs one command line. The command serve is done when ctx ends or a signal says so.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}

// newRoot returns the command line. Without a command it serves.
func newRoot() *cobra.Command {
	serve := newServe()
	root := &cobra.Command{
		Use:   "sidecar [command]",
		Short: "Weir, a rate limit service for Envoy",
		Long: `Weir, a rate limit service for Envoy. Without a command it serves.

Each flag of serve can also be an environment variable, named in brackets. The settings file (--config) has the same names,
with '-' or '_'. A flag wins over the environment, and the environment over the settings file.`,
		Args:          noCommand,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	addSettings(root.Flags())
	shown := root.Flags().BoolP("version", "v", false, "version for sidecar")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *shown {
			return printVersion(cmd, args)
		}
		return serve.RunE(cmd, args)
	}
	plain := new(cobra.Command).UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		if cmd == root || cmd == serve {
			return groupedUsage(cmd)
		}
		return plain(cmd)
	})
	root.SetHelpCommand(newHelp(root))
	root.AddCommand(serve, newCheck(), newTest(), newMatch(), newWatch(), newLogLevel(), newTop(), newQuotas(), newReset(), newHolds(),
		newGrant(), newGrants(), newRevoke(), newUsage(), newReplay(), newRecord(), newSimulate(), newSuggest(), newVersion())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w\nrun %s --help for its flags", meantFlag(cmd.Flags(), err), cmd.CommandPath())
	})
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit, Go version and platform",
		Args:  arguments(0, 0, "none"),
		RunE:  printVersion,
	}
}

// printVersion is the command version. The Version of cobra prints by a template: its reflection
// keeps every method of every library in the binary.
func printVersion(cmd *cobra.Command, _ []string) error {
	_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Read())
	return err
}

// noCommand refuses arguments, which without a command can only be a command that there is not.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usage("%q is not a command%s\nrun sidecar --help for all commands", args[0], meant(args[0], names))
}

// meantFlag completes the error about a flag that there is not.
func meantFlag(flags *pflag.FlagSet, err error) error {
	unknown, ok := err.(*pflag.NotExistError) //nolint:errorlint // pflag returns it as it is
	if !ok {
		return err
	}
	name := unknown.GetSpecifiedName()
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, meant("--"+name, names))
}

// arguments returns a check of the number of arguments, whose error describes them with the text
// what.
func arguments(min, max int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < min || max >= 0 && len(args) > max {
			return usage("%s: got %s, must be %s", cmd.Name(), count(len(args), "argument"), what)
		}
		return nil
	}
}
