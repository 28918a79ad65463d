package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// newVersion returns the command that says what this binary is.
func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit, Go version and platform",
		Args:  arguments(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				info = new(debug.BuildInfo)
			}
			version, commit := versionOf(info)
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "weir %s, commit %s, %s, %s/%s\n",
				version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// versionOf returns version and commit from what the linker put into the binary; "unknown" where it did not.
func versionOf(info *debug.BuildInfo) (version, commit string) {
	version, commit = info.Main.Version, "unknown"
	if version == "" || version == "(devel)" {
		version = "unknown"
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		commit += " with changes"
	}
	return version, commit
}
