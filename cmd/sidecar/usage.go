package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/admin/render"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// The values of --period.
const (
	periodNow  = "now"
	periodLast = "last"
)

func newUsage() *cobra.Command {
	var (
		c       remote
		period  string
		csv     bool
		request adminv1.ListUsageRequest
	)
	cmd := &cobra.Command{
		Use:   "usage [--server ADDRESS] DOMAIN RULE",
		Short: "List how much the keys of a rule with warn_at have used",
		Long: `List how much the keys of a rule with warn_at have used in the window of now, or in the last one, the most first. RULE is the path of a
rule, as match prints it.

The list has the keys that the asked sidecar has charged since its start, 10000 at most for all rules. With --store redis the used hits of
now are of all sidecars. "7?" means: 7 by the last decision of this sidecar. So are all figures of the last window, and the ones of
now while Redis does not answer.`,
		Example: `  sidecar usage shop tenant
  sidecar usage shop tenant --period last --csv > last.csv`,
		Args: arguments(2, 2, "DOMAIN RULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if period != periodNow && period != periodLast {
				return usage("--period: %q: must be %s or %s", period, periodNow, periodLast)
			}
			if csv && c.output == outputJSON {
				return usage("--csv, --output json: must be one of the two")
			}
			request.Domain, request.Rule, request.Last = args[0], args[1], period == periodLast
			if !csv {
				return show(cmd, &c, adminv1.AdminServiceClient.ListUsage, &request, render.UsageText)
			}
			answer, err := ask(cmd, c.server, adminv1.AdminServiceClient.ListUsage, &request)
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), render.UsageCSV(answer))
			return err
		},
	}
	addServer(cmd, &c.server)
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&period, "period", periodNow, "the window: now|last; last is the one that ended last")
	flags.BoolVar(&csv, "csv", false, "write CSV")
	flags.Uint32Var(&request.Most, "most", 0, "list at most this `number` of keys; 0 = all")
	c.addOutput(cmd)
	return cmd
}
