package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/timespan"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

type grantFlags struct {
	limit, length, until, reason, by string
	requests, add                    uint64
	burst                            uint32
	factor                           float64
	unlimited, block                 bool
}

func newGrant() *cobra.Command {
	var c remote
	var in grantFlags
	cmd := &cobra.Command{
		Use:   "grant [--server ADDRESS] DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short: "Give one key another limit until a time",
		Long: `Give one key of a running sidecar another limit until a time: more, less, everything or nothing. With --store redis all sidecars obey
within a second. The count of the key goes on under the new limit. A grant for the same key and limit replaces the earlier one.

--add tops up a fixed_window: the key has so many more requests until the window ends, beside its other grants. Several --add sum up.

The descriptor is one that counts under the key; match --server shows the key. One of --requests, --factor, --unlimited, --block and --add
is needed, and a --reason. One of --for and --until is needed, but not with --add. The server logs the grant. ` + entriesHelp,
		Example: `  sidecar grant edge tenant=acme --requests 500 --for 2h --reason "launch, ticket 4711"
  sidecar grant edge client_ip=203.0.113.7 --block --until 2030-01-01T00:00:00Z --reason "scraper"`,
		Args: arguments(2, 2, "DOMAIN DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			grant, err := in.grant(cmd.Flags().Changed, args[0], args[1])
			if err := errors.Join(outputFormat(c.output), err); err != nil {
				return usage("%w", err)
			}
			return show(cmd, &c, adminv1.AdminServiceClient.Grant, &adminv1.GrantRequest{Grant: grant}, render.GivenText)
		},
	}
	addServer(cmd, &c.server)
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Uint64Var(&in.requests, "requests", 0, "give this `number` of requests per period of the limit; 0 blocks")
	flags.Uint32Var(&in.burst, "burst", 0, "with --requests, of a token_bucket: the `burst`; 0 = in the proportion of the rule")
	flags.Float64Var(&in.factor, "factor", 0, "give the limit's own numbers times this `factor`, at most 1000000")
	flags.BoolVar(&in.unlimited, "unlimited", false, "let everything pass, and count nothing")
	flags.BoolVar(&in.block, "block", false, "deny every request")
	flags.Uint64Var(&in.add, "add", 0, "give this `number` of requests more until the window of the limit ends, of a fixed_window")
	flags.StringVar(&in.limit, "limit", "",
		"only the limit with this `name`, or with this end of its key, such as token_bucket/1s; \"\" = all limits of the rule")
	flags.StringVar(&in.length, "for", "", "end after this `duration`, such as 30m, 2h or 7d")
	flags.StringVar(&in.until, "until", "", "end at this `time`, such as 2030-12-31T18:00:00Z")
	flags.StringVar(&in.reason, "reason", "", "the reason, 1 to 500 bytes")
	flags.StringVar(&in.by, "by", os.Getenv("USER"), "the `person` or program who gives it")
	flags.StringVar(&c.output, "output", outputText, "text|json") // checked with the other flags
	return cmd
}

// grant returns the grant that a command line asks for, or all mistakes in the command line,
// joined.
func (f *grantFlags) grant(changed func(flag string) bool, domain, descriptor string) (*adminv1.Grant, error) {
	g := &adminv1.Grant{Domain: domain, Limit: f.limit, Burst: f.burst, Reason: f.reason, By: f.by}
	all, err := parseDescriptors([]string{descriptor}, nil)
	if err == nil {
		g.Entries = all[0].GetEntries()
	}
	errs := []error{err}
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	given := 0
	for _, name := range []string{"requests", "factor", "unlimited", "block", "add"} {
		if changed(name) {
			given++
		}
	}
	switch {
	case given != 1:
		wrong("--requests, --factor, --unlimited, --block, --add: got %d of them, must be one", given)
	case changed("requests"):
		g.Gives = &adminv1.Grant_RequestsPerUnit{RequestsPerUnit: uint32(f.requests)}
		if f.requests > math.MaxUint32 {
			g.Gives = &adminv1.Grant_LargeRequests{LargeRequests: f.requests}
		}
	case changed("factor"):
		g.Gives = &adminv1.Grant_Factor{Factor: f.factor}
	case changed("add"):
		g.Gives = &adminv1.Grant_Add{Add: uint32(f.add)}
		if f.add > math.MaxUint32 {
			g.Gives = &adminv1.Grant_LargeAdd{LargeAdd: f.add}
		}
	case f.unlimited:
		g.Gives = &adminv1.Grant_Unlimited{Unlimited: true}
	case f.block:
		g.Gives = &adminv1.Grant_RequestsPerUnit{}
	default:
		wrong("--unlimited, --block: got false, must be true or left out")
	}
	if changed("add") {
		if changed("for") || changed("until") {
			wrong("--for, --until: go not with --add, as the window has an end")
		}
	} else if changed("for") == changed("until") {
		wrong("--for, --until: must be one of the two")
	} else if changed("for") {
		length, err := timespan.Parse(f.length)
		if err != nil || length <= 0 {
			wrong("--for: %q: must be a duration such as 30m, 2h, 7d or 2w, and more than 0%s", f.length, timespan.Hint(f.length))
		}
		g.Until = timestamppb.New(time.Now().Add(length))
	} else {
		at, err := time.Parse(time.RFC3339, f.until)
		if err != nil {
			wrong("--until: %q: must be a time such as 2030-12-31T18:00:00Z", f.until)
		}
		g.Until = timestamppb.New(at)
	}
	if f.reason == "" {
		wrong("--reason: is missing: must say why, for the log and for others")
	}
	return g, errors.Join(errs...)
}

func newGrants() *cobra.Command {
	var c remote
	var domain string
	var most uint32
	cmd := &cobra.Command{
		Use:   "grants [--server ADDRESS]",
		Short: "List the grants in force, the next one to end first",
		Long: `List the grants in force of a running sidecar, the next one to end first. The list has the key, the limit, the end and the reason of each
grant. A grant without a rule is listed as one without effect.`,
		Args: arguments(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &c, adminv1.AdminServiceClient.ListGrants, &adminv1.ListGrantsRequest{Domain: domain, Most: most}, render.GrantsText)
		},
	}
	addServer(cmd, &c.server)
	cmd.Flags().StringVar(&domain, "domain", "", "only this `domain`")
	cmd.Flags().Uint32Var(&most, "most", 0, "list at most this `number`; 0 = 1000")
	c.addOutput(cmd)
	return cmd
}

func newRevoke() *cobra.Command {
	var c remote
	var by string
	cmd := &cobra.Command{
		Use:   "revoke [--server ADDRESS] ID",
		Short: "End a grant before its time",
		Long: `End a grant of a running sidecar before its time, by its ID as grants lists it. The server logs that.
A block of a limit with escalate is no grant: reset ends it.`,
		Args: arguments(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd, &c, adminv1.AdminServiceClient.Revoke, &adminv1.RevokeRequest{Id: args[0], By: by}, render.RevokedText)
		},
	}
	addServer(cmd, &c.server)
	cmd.Flags().StringVar(&by, "by", os.Getenv("USER"), "the `person` or program who ends it")
	c.addOutput(cmd)
	return cmd
}
