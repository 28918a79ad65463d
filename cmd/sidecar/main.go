// Command sidecar is Weir: a rate limit service for Envoy to run beside it.
//
// It reads the settings (flags, WEIR_* environment variables, a settings file), wires store, limiter, reloader and server
// together and turns signals into reloads and an orderly end. `check`, `match` and `replay` try out rules and algorithms
// without serving; `match --server` and `reset` ask a running sidecar. Run `sidecar help` for all of it.
//
// Exit codes: 0 success; 1 settings or rules with mistakes, or a failure; 2 a command line, or a line of replay's input, that
// means nothing.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	os.Exit(report(os.Stderr, run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)))
}

// run runs one command line. It returns when the command is done; serve is when ctx ends or a signal says so.
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

Each flag of serve can also be an environment variable, named in brackets, or a key of the settings file (--config), named
as the flag with '-' or '_'. A flag wins over the environment, that over the settings file.`,
		Args:              noCommand,
		RunE:              serve.RunE,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	addSettings(root.Flags())
	root.AddCommand(serve, newCheck(), newMatch(), newReset(), newReplay(), newVersion())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w%s\nrun %s --help for its flags", err, meantFlag(cmd.Flags(), err), cmd.CommandPath())
	})
	return root
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

// meantFlag suggests a flag when the error is about one that there is not.
func meantFlag(flags *pflag.FlagSet, err error) string {
	unknown, ok := err.(*pflag.NotExistError) //nolint:errorlint // pflag returns it as it is
	if !ok {
		return ""
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return meant("--"+unknown.GetSpecifiedName(), names)
}

// arguments returns a check of the number of arguments; what names them for the message.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return usage("%s: got %d arguments, must be %s", cmd.Name(), len(args), what)
		}
		return nil
	}
}
