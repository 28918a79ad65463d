package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/render"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// newGrant returns the command that gives a key another limit in a running sidecar.
func newGrant() *cobra.Command {
	var server, output, limit, length, until, reason, by string
	var requests, burst uint32
	var factor float64
	var unlimited, block bool
	cmd := &cobra.Command{
		Use:   "grant [--server ADDRESS] DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short: "Give one key another limit until a time",
		Long: `Give one key of a running sidecar another limit until a time: more, less, everything or nothing. With --store redis all sidecars obey
within a second. The count of the key goes on under the new limit. A grant for the same key and limit replaces the earlier one.

The descriptor is one that counts under the key; match --server shows the key. One of --requests, --factor, --unlimited and --block
is needed, one of --for and --until, and a --reason. The server logs the grant. ` + entriesHelp,
		Example: `  sidecar grant edge tenant=acme --requests 500 --for 2h --reason "launch, ticket 4711"
  sidecar grant edge client_ip=203.0.113.7 --block --until 2030-01-01T00:00:00Z --reason "scraper"`,
		Args: arguments(2, 2, "DOMAIN DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := outputFormat(output); err != nil {
				return usage("%w", err)
			}
			all, err := parseDescriptors(args[1:], nil)
			if err != nil {
				return err
			}
			changed := cmd.Flags().Changed
			given := 0
			for _, name := range []string{"requests", "factor", "unlimited", "block"} {
				if changed(name) {
					given++
				}
			}
			grant := &adminv1.Grant{Domain: args[0], Entries: all[0].GetEntries(), Limit: limit, Burst: burst, Reason: reason, By: by}
			switch {
			case given != 1:
				return usage("--requests, --factor, --unlimited, --block: got %d of them, must be one", given)
			case changed("requests"):
				grant.Gives = &adminv1.Grant_RequestsPerUnit{RequestsPerUnit: requests}
			case changed("factor"):
				grant.Gives = &adminv1.Grant_Factor{Factor: factor}
			case unlimited:
				grant.Gives = &adminv1.Grant_Unlimited{Unlimited: true}
			case block:
				grant.Gives = &adminv1.Grant_RequestsPerUnit{}
			default:
				return usage("--unlimited, --block: got false, must be true or left out")
			}
			if changed("for") == changed("until") {
				return usage("--for, --until: must be one of the two")
			}
			at, err := time.Parse(time.RFC3339, until)
			if changed("for") {
				var d time.Duration
				if d, err = lengthOf(length); err != nil {
					return usage("--for: %q: must be a duration such as 30m, 2h or 7d, and more than 0", length)
				}
				at = time.Now().Add(d)
			}
			if err != nil {
				return usage("--until: %q: must be a time such as 2030-12-31T18:00:00Z", until)
			}
			grant.Until = timestamppb.New(at)
			if reason == "" {
				return usage("--reason: is missing: must say why, for the log and for others")
			}
			answer, err := ask(cmd, server, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.GrantResponse, error) {
				return c.Grant(ctx, &adminv1.GrantRequest{Grant: grant})
			})
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), output, answer, render.GivenText(answer))
		},
	}
	addServer(cmd, &server)
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Uint32Var(&requests, "requests", 0, "give this `number` of requests per period of the limit; 0 blocks")
	flags.Uint32Var(&burst, "burst", 0, "with --requests, of a token_bucket: the `burst`; 0 = in the proportion of the rule")
	flags.Float64Var(&factor, "factor", 0, "give the limit's own numbers times this `factor`, at most 1000000")
	flags.BoolVar(&unlimited, "unlimited", false, "let everything pass, and count nothing")
	flags.BoolVar(&block, "block", false, "deny every request")
	flags.StringVar(&limit, "limit", "", "only the limit with this `name`, or with this end of its key, such as token_bucket/1s; \"\" = all limits of the rule")
	flags.StringVar(&length, "for", "", "end after this `duration`, such as 30m, 2h or 7d")
	flags.StringVar(&until, "until", "", "end at this `time`, such as 2030-12-31T18:00:00Z")
	flags.StringVar(&reason, "reason", "", "the reason, 1 to 500 bytes")
	flags.StringVar(&by, "by", os.Getenv("USER"), "the `person` or program who gives it")
	flags.StringVar(&output, "output", outputText, "text|json")
	return cmd
}

// lengthOf reads a duration of Go, or a number of days, which must be more than 0.
func lengthOf(text string) (time.Duration, error) {
	const day = 24 * time.Hour
	if number, ok := strings.CutSuffix(text, "d"); ok {
		days, err := strconv.ParseUint(number, 10, 16) // 179 years
		if err != nil || days == 0 {
			return 0, errLength
		}
		return time.Duration(days) * day, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, errLength
	}
	return d, nil
}

var errLength = errors.New("no duration")

// newGrants returns the command that lists the grants of a running sidecar.
func newGrants() *cobra.Command {
	var server, output, domain string
	var most uint32
	cmd := &cobra.Command{
		Use:   "grants [--server ADDRESS]",
		Short: "List the grants in force, the next one to end first",
		Long: `List the grants in force of a running sidecar, the next one to end first. The list has the key, the limit, the end and the reason of each
grant. A grant without a rule is listed as one without effect.`,
		Args: arguments(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := outputFormat(output); err != nil {
				return usage("%w", err)
			}
			answer, err := ask(cmd, server, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.ListGrantsResponse, error) {
				return c.ListGrants(ctx, &adminv1.ListGrantsRequest{Domain: domain, Most: most})
			})
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), output, answer, render.GrantsText(answer))
		},
	}
	addServer(cmd, &server)
	cmd.Flags().StringVar(&domain, "domain", "", "only this `domain`")
	cmd.Flags().Uint32Var(&most, "most", 0, "list at most this `number`; 0 = 1000")
	cmd.Flags().StringVar(&output, "output", outputText, "text|json")
	return cmd
}

// newRevoke returns the command that ends a grant of a running sidecar.
func newRevoke() *cobra.Command {
	var server, output, by string
	cmd := &cobra.Command{
		Use:   "revoke [--server ADDRESS] ID",
		Short: "End a grant before its time",
		Long:  `End a grant of a running sidecar before its time, by its ID as grants lists it. The server logs that.`,
		Args:  arguments(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := outputFormat(output); err != nil {
				return usage("%w", err)
			}
			answer, err := ask(cmd, server, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.RevokeResponse, error) {
				return c.Revoke(ctx, &adminv1.RevokeRequest{Id: args[0], By: by})
			})
			if err != nil {
				return err
			}
			return writeAnswer(cmd.OutOrStdout(), output, answer, render.RevokedText(answer))
		},
	}
	addServer(cmd, &server)
	cmd.Flags().StringVar(&by, "by", os.Getenv("USER"), "the `person` or program who ends it")
	cmd.Flags().StringVar(&output, "output", outputText, "text|json")
	return cmd
}
