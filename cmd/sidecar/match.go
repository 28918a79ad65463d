package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/lab"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store/memstore"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

type matchFlags struct {
	remote
	settings string
	bounds   ruleBounds
	hits     uint32
	expected []string
	bucket   bool
}

func newMatch() *cobra.Command {
	var f matchFlags
	cmd := &cobra.Command{
		Use:   "match PATH… DOMAIN KEY=VALUE[,KEY=VALUE…]…",
		Short: "Say which rule a descriptor matches, under which key it counts, and why",
		Long: `Say which rule a descriptor matches, under which keys it counts, and why. The rules are rule files, or the rules of a running
sidecar (--server), which also knows its counts. Nothing is charged. Exit code 3 when the domain has no rules, or no rule matches. With
--expect-rule the exit code is 1 when a descriptor meets another rule.

With --bucket each descriptor is a bucket id of RLQS: its entries have no order. The command says which order the rules have, and whether
the limit can be divided among Envoys.

` + entriesHelp + ` Several descriptors are several arguments.`,
		Example: `  sidecar match rules/ edge path=/search,client_id=c1
  sidecar match --server 127.0.0.1:8082 edge path=/search,client_id=c1`,
		Args: arguments(2, -1, "PATH… DOMAIN DESCRIPTOR…, or DOMAIN DESCRIPTOR… with --server or --config"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("server") {
				return f.explainRemote(cmd, args[0], args[1:])
			}
			return f.explainFiles(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.server, "server", "", "ask the admin service at this `address`, host:port, such as "+defaultServer)
	addAccess(cmd)
	flags.Uint32Var(&f.hits, "hits", 1, "hits to ask for; 0 asks for the remaining hits")
	flags.StringVar(&f.settings, "config", "", "settings `file` whose rules under domains are used too")
	flags.StringArrayVar(&f.expected, "expect-rule", nil,
		"fail unless the descriptor meets the rule with this `path`, \"\" for no rule; one for each descriptor, in order")
	flags.BoolVar(&f.bucket, "bucket", false, "the descriptors are bucket ids of RLQS")
	f.addOutput(cmd)
	addBounds(cmd, &f.bounds)
	return cmd
}

// descriptors reads the descriptors of the command line.
func (f *matchFlags) descriptors(args []string) ([]*adminv1.Descriptor, error) {
	all, err := parseDescriptors(args, &f.hits)
	for _, d := range all {
		d.Bucket = f.bucket
	}
	return all, err
}

// explainRemote asks a running sidecar to explain descriptors.
func (f *matchFlags) explainRemote(cmd *cobra.Command, domain string, args []string) error {
	all, err := f.descriptors(args)
	if err != nil {
		return err
	}
	answer, err := ask(cmd, f.server, adminv1.AdminServiceClient.Explain, &adminv1.ExplainRequest{Domain: domain, Descriptors: all})
	if err != nil {
		return err
	}
	return f.write(cmd, answer, render.ExplanationText(domain, answer, true))
}

// explainFiles explains descriptors by the rules of files.
func (f *matchFlags) explainFiles(cmd *cobra.Command, args []string) error {
	before := 2 // at least one path, and the domain
	if f.settings != "" {
		before = 1
	}
	const server = "; with --server ADDRESS it asks a running Weir, as grant, watch and top do: DOMAIN DESCRIPTOR…"
	if len(args) <= before {
		return usage("%s: got %s, must be PATH… DOMAIN DESCRIPTOR…"+server, cmd.Name(), count(len(args), "argument"))
	}
	if _, err := os.Stat(args[0]); before == 2 && errors.Is(err, fs.ErrNotExist) && strings.Contains(args[1], "=") {
		return usage("%s: no file %s, must be PATH… DOMAIN DESCRIPTOR…"+server, cmd.Name(), args[0])
	}
	first := len(args) - 1 // of the descriptors
	for first > before && strings.Contains(args[first-1], "=") {
		first--
	}
	paths, domain := args[:first-1], args[first-1]
	all, err := f.descriptors(args[first:])
	if err != nil {
		return err
	}
	rules, _, _, err := loadRules(paths, f.settings, f.bounds)
	if err != nil {
		return err
	}
	answer, err := explainIdle(cmd.Context(), rules, &adminv1.ExplainRequest{Domain: domain, Descriptors: all})
	if err != nil {
		return usage("%w", err)
	}
	return f.write(cmd, answer, render.ExplanationText(domain, answer, false))
}

// write writes an explanation. Without a rule for any of the descriptors it fails with
// exitNone; with expected rules, only when others are met.
func (f *matchFlags) write(cmd *cobra.Command, answer *adminv1.ExplainResponse, text string) error {
	if got, want := len(f.expected), len(answer.GetDescriptors()); got > 0 && got != want { // before any output
		return usage("--expect-rule: is given %d times, must be given once for each of %s", got, count(want, "descriptor"))
	}
	if err := writeAnswer(cmd.OutOrStdout(), f.output, answer, text); err != nil {
		return err
	}
	if len(f.expected) > 0 {
		return unexpected(answer, f.expected)
	}
	if !slices.ContainsFunc(answer.GetDescriptors(), (*adminv1.DescriptorExplanation).GetMatched) {
		return reported(exitNone)
	}
	return nil
}

// unexpected returns an error that names each descriptor that meets another rule than expected.
func unexpected(answer *adminv1.ExplainResponse, expected []string) error {
	var errs []error
	for i, d := range answer.GetDescriptors() {
		rule := d.GetRule()
		switch {
		case rule.GetPath() == expected[i]:
		case rule == nil:
			errs = append(errs, fmt.Errorf("descriptor %d: meets no rule, want rule %q", i+1, expected[i]))
		default:
			errs = append(errs, fmt.Errorf("descriptor %d: meets rule %q (%s:%d), want %s",
				i+1, rule.GetPath(), rule.GetFile(), rule.GetLine(), ruleOrNone(expected[i])))
		}
	}
	return errors.Join(errs...)
}

// ruleOrNone words an expected rule.
func ruleOrNone(path string) string {
	if path == "" {
		return "no rule"
	}
	return fmt.Sprintf("rule %q", path)
}

// explainIdle explains a request by these rules, as a server without any counts would.
func explainIdle(ctx context.Context, rules *descriptors.Rules, request *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	idle, err := lab.New(rules, memstore.Options{MaxKeys: 1})
	if err != nil {
		return nil, err
	}
	defer idle.Close()
	idle.SetTime(algorithms.Instant(time.Now().UnixNano()))
	return render.Explain(ctx, idle.Limiter, request)
}
