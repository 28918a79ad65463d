package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/render"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// newMatch returns the command that says which rule a descriptor matches.
func newMatch() *cobra.Command {
	var server, output, settings string
	var bounds ruleBounds
	var hits uint32
	cmd := &cobra.Command{
		Use:   "match PATH… DOMAIN KEY=VALUE[,KEY=VALUE…]…",
		Short: "Say which rule a descriptor matches, under which key it counts, and why",
		Long: `Say which rule a descriptor matches, under which keys it counts, and why. The rules are rule files, or the rules of a running
sidecar (--server), which also knows its counts. Nothing is charged. Exit code 3 when the domain has no rules, or no rule matches.

` + entriesHelp + ` Several descriptors are several arguments.`,
		Example: `  sidecar match rules/ edge path=/search,client_id=c1
  sidecar match --server 127.0.0.1:8082 edge path=/search,client_id=c1`,
		Args: arguments(2, -1, "PATH… DOMAIN DESCRIPTOR…, or DOMAIN DESCRIPTOR… with --server or --config"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := outputFormat(output); err != nil {
				return usage("%w", err)
			}
			if cmd.Flags().Changed("server") {
				return explain(cmd, server, args[0], args[1:], hits, output)
			}
			before := 2 // at least one path, and the domain
			if settings != "" {
				before = 1
			}
			if len(args) <= before {
				return usage("%s: got %d arguments, must be PATH… DOMAIN DESCRIPTOR…", cmd.Name(), len(args))
			}
			first := len(args) - 1 // of the descriptors
			for first > before && strings.Contains(args[first-1], "=") {
				first--
			}
			paths, domain := args[:first-1], args[first-1]
			all, err := parseDescriptors(args[first:], &hits)
			if err != nil {
				return err
			}
			rules, _, _, err := loadRules(paths, settings, bounds)
			if err != nil {
				return err
			}
			answer, err := explainIdle(cmd.Context(), rules, &adminv1.ExplainRequest{Domain: domain, Descriptors: all})
			if err != nil {
				return usage("%w", err)
			}
			return writeExplanation(cmd, output, answer, render.ExplanationText(domain, answer, false))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&server, "server", "", "ask the admin service at this `address`, such as "+defaultServer)
	addAccess(cmd)
	flags.Uint32Var(&hits, "hits", 1, "hits to ask for; 0 asks for the remaining hits")
	flags.StringVar(&settings, "config", "", "settings `file` whose rules under domains are used too")
	flags.StringVar(&output, "output", outputText, "text|json")
	addBounds(cmd, &bounds)
	return cmd
}

// writeExplanation writes an explanation. Without a rule for any of the descriptors it fails with exitNone.
func writeExplanation(cmd *cobra.Command, output string, answer *adminv1.ExplainResponse, text string) error {
	if err := writeAnswer(cmd.OutOrStdout(), output, answer, text); err != nil {
		return err
	}
	if !slices.ContainsFunc(answer.GetDescriptors(), (*adminv1.DescriptorExplanation).GetMatched) {
		return reported(exitNone)
	}
	return nil
}

// explainIdle explains a request by these rules, as a server without any counts would.
func explainIdle(ctx context.Context, rules *descriptors.Rules, request *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	idle, err := memstore.New(memstore.Options{MaxKeys: 1})
	if err != nil {
		return nil, err
	}
	defer idle.Close()
	l, err := limiter.New(idle, limiter.Options{})
	if err != nil {
		return nil, err
	}
	l.SetRules(rules)
	return render.Explain(ctx, l, request)
}
