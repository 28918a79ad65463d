package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// newMatch returns the command that says which rule a descriptor matches.
func newMatch() *cobra.Command {
	var server, output, settings string
	var bounds ruleBounds
	var hits uint32
	cmd := &cobra.Command{
		Use:   "match PATH… DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short: "Say which rule a descriptor matches, under which key it counts, and why",
		Long: `Say which rule a descriptor matches, under which keys it counts, and why: by rule files, or by a running sidecar (--server),
which also knows what is left. Nothing is charged.

` + entriesHelp,
		Example: `  sidecar match rules/ edge path=/search,client_id=c1
  sidecar match --server 127.0.0.1:8082 edge path=/search,client_id=c1`,
		Args: arguments(2, -1, "PATH… DOMAIN DESCRIPTOR, or DOMAIN DESCRIPTOR… with --server or --config"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := outputFormat(output); err != nil {
				return usage("%w", err)
			}
			if cmd.Flags().Changed("server") {
				return explain(cmd, server, args[0], args[1:], hits, output)
			}
			paths, domain, descriptor := args[:len(args)-2], args[len(args)-2], args[len(args)-1]
			if len(paths) == 0 && settings == "" {
				return usage("%s: got 2 arguments, must be PATH… DOMAIN DESCRIPTOR", cmd.Name())
			}
			entries, err := parseEntries(descriptor)
			if err != nil {
				return usage("%w", err)
			}
			rules, _, _, err := loadRules(paths, settings, bounds)
			if err != nil {
				return err
			}
			m := newMatched(rules, domain, entries)
			if output == outputJSON {
				return writeJSON(cmd.OutOrStdout(), m)
			}
			return m.write(cmd.OutOrStdout(), rules)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&server, "server", "", "ask the admin service at this `address`, such as "+defaultServer)
	flags.Uint32Var(&hits, "hits", 1, "with --server: hits to ask for; 0 asks what is left")
	flags.StringVar(&settings, "config", "", "settings `file` whose rules under domains are used too")
	flags.StringVar(&output, "output", outputText, "text|json")
	addBounds(cmd, &bounds)
	return cmd
}

// matched is what became of a descriptor, in the form of --output json.
type matched struct {
	Domain  string        `json:"domain"`
	Known   bool          `json:"domain_known"` // there are rules of the domain
	Matched bool          `json:"matched"`      // a rule or the domain's default applies
	Default bool          `json:"default"`      // it is the default
	Steps   []matchedStep `json:"steps"`
	Rule    *matchedRule  `json:"rule,omitempty"`

	domain *descriptors.Domain
	steps  []descriptors.Step
}

type matchedStep struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Reason  string `json:"reason"` // exact, wildcard, key_only or no_match
	Pattern string `json:"pattern,omitempty"`
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
}

type matchedRule struct {
	Path      string         `json:"path"`
	File      string         `json:"file"`
	Line      int            `json:"line,omitempty"`
	Name      string         `json:"name,omitempty"`
	Unlimited bool           `json:"unlimited"`
	Shadow    bool           `json:"shadow"`
	Quota     bool           `json:"quota"`
	Replaces  []string       `json:"replaces,omitempty"`
	Limits    []matchedLimit `json:"limits"`
}

type matchedLimit struct {
	Algorithm     string `json:"algorithm"`
	Requests      uint32 `json:"requests"`
	Period        string `json:"period"`
	Burst         uint32 `json:"burst,omitempty"`
	CountRejected bool   `json:"count_rejected"`
	OnStoreError  string `json:"on_store_error,omitempty"` // where the rules say
	Key           string `json:"key"`

	limit descriptors.Limit
}

// newMatched matches a descriptor.
func newMatched(rules *descriptors.Rules, domain string, entries []descriptors.Entry) matched {
	m := matched{Domain: domain, domain: rules.Domain(domain), Steps: []matchedStep{}}
	if m.domain == nil {
		return m
	}
	m.Known = true
	m.steps = m.domain.Trace(entries)
	for _, s := range m.steps {
		step := matchedStep{Key: s.Entry.Key, Value: s.Entry.Value, Reason: reasonName(s.Reason), Pattern: s.Pattern}
		if s.Rule != nil {
			step.File, step.Line = s.Rule.File, s.Rule.Line
		}
		m.Steps = append(m.Steps, step)
	}
	rule := m.domain.Match(entries)
	if rule == nil {
		rule, m.Default = m.domain.Default, m.domain.Default != nil
	}
	if rule == nil {
		return m
	}
	m.Matched = true
	m.Rule = &matchedRule{
		Path: rule.Path, File: rule.File, Line: rule.Line, Name: rule.Name, Unlimited: rule.Unlimited, Shadow: rule.Shadow,
		Quota: rule.Quota, Replaces: rule.Replaces, Limits: []matchedLimit{},
	}
	for _, l := range rule.Limits {
		own := matchedLimit{
			Algorithm: l.Algorithm.String(), Requests: l.Requests, Period: l.Period.String(), Burst: l.Burst,
			CountRejected: l.CountRejected, Key: string(rule.AppendKey(nil, domain, entries, &l)), limit: l,
		}
		if l.OnStoreError != descriptors.OnStoreErrorUnset {
			own.OnStoreError = l.OnStoreError.String()
		}
		m.Rule.Limits = append(m.Rule.Limits, own)
	}
	return m
}

// reasonName returns the name of a reason in JSON.
func reasonName(r descriptors.Reason) string {
	switch r {
	case descriptors.Exact:
		return "exact"
	case descriptors.Wildcard:
		return "wildcard"
	case descriptors.KeyOnly:
		return "key_only"
	case descriptors.NoMatch:
	}
	return "no_match"
}

// write writes what became of the descriptor for people.
func (m *matched) write(w io.Writer, rules *descriptors.Rules) error {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-7s "+format+"\n", append([]any{label}, args...)...)
	}
	if m.domain == nil {
		var names []string
		for _, d := range rules.Domains() {
			names = append(names, d.Name)
		}
		line("domain", "%s: has no rules, so nothing is limited; there are %s", m.Domain, wordList(names, "and"))
	} else {
		line("domain", "%s (%s)", m.Domain, place(m.domain.File, m.domain.Line))
	}
	for _, s := range m.steps {
		if s.Rule == nil {
			line("entry", "%s", s)
			continue
		}
		line("entry", "%s (%s)", s, place(s.Rule.File, s.Rule.Line))
	}
	r := m.Rule
	switch {
	case m.domain == nil:
	case r == nil:
		line("rule", "none, so it is not limited")
	case m.Default:
		line("rule", "the domain's default (%s)", place(r.File, r.Line))
	default:
		line("rule", "%s (%s)%s", r.Path, place(r.File, r.Line), r.remarks())
	}
	if r != nil {
		for _, l := range r.Limits {
			line("limit", "%s", describe(l.limit.Limit, l.CountRejected, l.OnStoreError))
			line("key", "%s", l.Key)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// remarks says what is special about a rule.
func (r *matchedRule) remarks() string {
	var remarks []string
	if r.Unlimited {
		remarks = append(remarks, "unlimited")
	} else if len(r.Limits) == 0 {
		remarks = append(remarks, "does not limit")
	}
	if r.Shadow {
		remarks = append(remarks, "shadow mode")
	}
	if r.Quota {
		remarks = append(remarks, "quota mode")
	}
	if r.Name != "" {
		remarks = append(remarks, "name "+r.Name)
	}
	if len(r.Replaces) > 0 {
		remarks = append(remarks, "replaces "+wordList(r.Replaces, "and"))
	}
	if len(remarks) == 0 {
		return ""
	}
	return ": " + strings.Join(remarks, ", ")
}
