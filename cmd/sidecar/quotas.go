package main

import (
	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/admin/render"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func newQuotas() *cobra.Command {
	var c remote
	var request adminv1.ListQuotasRequest
	var once bool
	cmd := &cobra.Command{
		Use:   "quotas [--server ADDRESS] [DOMAIN [KEY[=VALUE][,KEY[=VALUE]…]]]",
		Short: "Show the limits that are divided among Envoys with RLQS, and the part of each Envoy",
		Long: `Show the limits of a running sidecar that are divided among Envoys with RLQS, and the part of each Envoy. Limits with an Envoy that may decide
by its own configuration come first, then the ones with the largest demand. A domain and entries choose limits; a KEY alone stands for all its values.
On a terminal the list is drawn again every two seconds until Ctrl-C. Anywhere else, and with --once or --output json, it is written once.

DEMAND, RATE and the numbers of a limit are requests in a second. DEMAND is of the last reports, allowed and denied requests. SHARE is the
part of the limit's rate, TOKENS the size of the bucket, and USED the allowed part of the rate. REPORT is the age of the last report. STATE is one of:

bucket      The Envoy has received a bucket of tokens.
deny_all    The Envoy must deny all requests: a part is not free, or the limit is 0.
allow_all   The rule is unlimited or in shadow mode.
gone        The stream has ended, and the bucket counts until it has expired.
leaving     The bucket was idle, and the Envoy must forget it.
none        There is no assignment. Envoy's no_assignment_behavior decides.
first       The first assignment is under way. Envoy's no_assignment_behavior may decide.
expired     The assignment is older than its time to live. Envoy's expired_assignment_behavior may decide.

With Redis, the list has only the Envoys of the asked sidecar, and the numbers of a limit are of its part. Ask the other sidecars too.

RLS in place of an Envoy is all requests of RLS under the same limit. An Envoy that sends the metadata x-weir-envoy has that name. Nobody checks the name.`,
		Example: `  sidecar quotas
  sidecar quotas edge tenant=acme
  sidecar quotas edge tenant --most 100 --output json`,
		Args: arguments(0, 2, "none, DOMAIN, or DOMAIN DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				request.Domain = args[0]
			}
			if len(args) > 1 {
				entries, err := parseParts(args[1], true)
				if err != nil {
					return usage("%w", err)
				}
				request.Entries = render.EntryMessages(entries)
			}
			if once || c.output == outputJSON || !isTerminal(cmd.OutOrStdout()) {
				return show(cmd, &c, adminv1.AdminServiceClient.ListQuotas, &request, render.QuotasText)
			}
			return redraw(cmd, &c, adminv1.AdminServiceClient.ListQuotas, &request, render.QuotasText, redrawTime)
		},
	}
	addServer(cmd, &c.server)
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&request.Rule, "rule", "", "only limits of the rule with this `path`, as match prints it")
	flags.Uint32Var(&request.Most, "most", 20, "show at most this `number` of limits, 1 to 1000")
	flags.BoolVar(&once, "once", false, "write one list, without control characters")
	c.addOutput(cmd)
	return cmd
}
