package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// groupedUsage writes the usage of a command with the flags of serve, in the groups of the table.
func groupedUsage(cmd *cobra.Command) error {
	if !cmd.HasParent() {
		fmt.Fprintf(cmd.OutOrStderr(), "Usage:\n  %s\n\nCommands:\n", cmd.UseLine())
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				fmt.Fprintf(cmd.OutOrStderr(), "  %-12s %s\n", c.Name(), c.Short)
			}
		}
	} else {
		fmt.Fprintf(cmd.OutOrStderr(), "Usage:\n  %s\n", cmd.UseLine())
	}
	for _, g := range groups(new(config)) {
		flags := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		flags.SortFlags = false
		for _, s := range g.settings {
			flags.AddFlag(cmd.Flags().Lookup(s.name))
		}
		fmt.Fprintf(cmd.OutOrStderr(), "\n%s:\n%s", g.title, flags.FlagUsages())
	}
	rest := pflag.NewFlagSet("others", pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, ours := f.Value.(*flagText); !ours {
			rest.AddFlag(f)
		}
	})
	_, err := fmt.Fprintf(cmd.OutOrStderr(), "\nOther flags:\n%s", rest.FlagUsages())
	return err
}

// newHelp returns the help command. Unlike cobra's own, it fails for a command that does not exist.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Print help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return noCommand(root, args)
			}
			if len(rest) > 0 {
				return noCommand(root, rest)
			}
			cmd.InitDefaultHelpFlag()
			cmd.InitDefaultVersionFlag()
			return cmd.Help()
		},
	}
}
