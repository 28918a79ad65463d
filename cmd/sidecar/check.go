package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/reload"
)

// newCheck returns the command that looks for mistakes in rules.
func newCheck() *cobra.Command {
	var strict bool
	var settings string
	var bounds ruleBounds
	cmd := &cobra.Command{
		Use:   "check PATH…",
		Short: "Check rule files and print every mistake",
		Long: `Check rule files, and directories of them, as serve would load them together, and print every mistake and warning, one per
line, on standard error. Exit code 1 when there is a mistake.`,
		Args: arguments(0, -1, "rule files or directories"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && settings == "" {
				return usage("%s: got no arguments, must be at least one rule file or directory, or --config", cmd.Name())
			}
			rules, files, warnings, err := loadRules(args, settings, bounds)
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), w)
			}
			if err != nil {
				return err
			}
			if strict && len(warnings) > 0 {
				return reported()
			}
			fmt.Fprintf(cmd.OutOrStdout(), "ok: %s, %s, %s\n",
				count(files, "file"), count(len(rules.Domains()), "domain"), count(rules.Len(), "rule"))
			return nil
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "take warnings for mistakes")
	cmd.Flags().StringVar(&settings, "config", "", "settings `file` whose rules under domains are checked too")
	addBounds(cmd, &bounds)
	return cmd
}

// ruleBounds is the settings of serve that decide whether rules are right.
type ruleBounds struct {
	maxLogEntries uint32
	store         string
}

// addBounds adds the flags of ruleBounds.
func addBounds(cmd *cobra.Command, to *ruleBounds) {
	cmd.Flags().Uint32Var(&to.maxLogEntries, "max-log-entries", limiter.DefaultMaxLogEntries, "as of serve: largest requests_per_unit of a sliding_window_log")
	cmd.Flags().StringVar(&to.store, "store", storeMemory, "as of serve: `memory|redis`, which counts time in microseconds")
}

// loadRules loads rules as serve does, and returns how many files they came from. Rules that are refused, and no rules at
// all, are an error with every reason.
func loadRules(paths []string, settings string, bounds ruleBounds) (*descriptors.Rules, int, []descriptors.Warning, error) {
	if err := settingsFormat(settings); err != nil {
		return nil, 0, nil, usage("--config: %q: %w", settings, err)
	}
	if err := storeOf(&bounds.store).store(bounds.store); err != nil {
		return nil, 0, nil, usage("--store: %w", err)
	}
	sources, readErr := reload.Read(paths, settings)
	rules, warnings, err := descriptors.Load(sources, descriptors.Options{
		MaxLogEntries: bounds.maxLogEntries,
		Granularity:   granularity(bounds.store),
	})
	if err := errors.Join(readErr, err); err != nil {
		return nil, 0, warnings, bad(err, exitBad)
	}
	if len(rules.Domains()) == 0 {
		return nil, 0, warnings, errors.New("there are no rules")
	}
	return rules, len(sources), warnings, nil
}
