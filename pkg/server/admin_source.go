package server

import (
	"iter"
	"maps"
	"slices"

	adminpage "github.com/weirproxy/weir/internal/admin/page"
	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// pageSource is the figures of the admin page.
func (s *Server) pageSource() adminpage.Source {
	return adminpage.Source{
		Totals: s.pageTotals, Rules: s.pageRules, Store: s.pageStore, Loads: s.pageLoads,
		Ready: func() string {
			if code, answer := s.ready(); code != 200 {
				return answer
			}
			return ""
		},
	}
}

func (s *Server) pageTotals() adminpage.Totals {
	r := s.options.Limiter.Requests()
	return adminpage.Totals{
		Passed: r.OK, Denied: r.OverLimit, Failed: r.Failed + s.service.lost.Load(), Unmatched: r.NoMatch, NoDomain: r.DomainNotFound,
		Latency: pageLatency(s.Spent()),
	}
}

// pageLatency returns a histogram as the page has it.
func pageLatency(d store.Durations) adminpage.Latency {
	out := adminpage.Latency{Bounds: slices.Sorted(maps.Keys(d.Buckets))}
	for _, bound := range out.Bounds {
		out.Counts = append(out.Counts, d.Buckets[bound])
	}
	out.Counts = append(out.Counts, d.Count)
	return out
}

// pageRules returns each rule that counts, once.
func (s *Server) pageRules() iter.Seq[adminpage.Rule] {
	return func(yield func(adminpage.Rule) bool) {
		for r := range s.counts() {
			if r.Rule != nil && len(r.Rule.Limits) == 0 && !r.Rule.Unlimited || r.Rule == nil && r.Counts.Total() == (limiter.Tally{}) {
				continue
			}
			if !yield(pageRule{r}) {
				return
			}
		}
	}
}

// pageRule is a rule as the page reads it.
type pageRule struct{ of limiter.RuleCounts }

// ID implements [adminpage.Rule].
func (r pageRule) ID() any { return r.of.Counts }

// Tally implements [adminpage.Rule].
func (r pageRule) Tally() adminpage.Tally {
	d := r.of.Counts.Total().Decisions
	return adminpage.Tally{
		Passed: d[limiter.CodeOK] + d[limiter.CodeUnlimited] + d[limiter.CodeReplaced], Denied: d[limiter.CodeOverLimit], Shadowed: d[limiter.CodeShadowed],
	}
}

// About implements [adminpage.Rule].
func (r pageRule) About() adminpage.About {
	about := adminpage.About{Domain: r.of.Domain, Path: r.of.Path, Limits: []string{}}
	if r.of.Rule == nil {
		about.Notes = []string{"limits that came with requests"}
		return about
	}
	rule := render.Rule(r.of.Rule)
	about.File, about.Line = rule.GetFile(), int(rule.GetLine())
	for _, l := range rule.GetLimits() {
		about.Limits = append(about.Limits, render.LimitText(l))
	}
	for note, has := range map[string]bool{"unlimited": rule.GetUnlimited(), "shadow": rule.GetShadowMode(), "quota": rule.GetQuotaMode()} {
		if has {
			about.Notes = append(about.Notes, note)
		}
	}
	slices.Sort(about.Notes)
	return about
}

func (s *Server) pageStore() adminpage.Store {
	out := adminpage.Store{Kind: "memory"}
	if s.options.Store != nil {
		h := s.options.Store()
		out.Kind, out.Since, out.Without, out.Owed, out.Fleet, out.Latency = h.Kind, h.Since, h.Without, h.Owed, h.Fleet, pageLatency(h.Spent)
		if h.Err != nil {
			out.Reason = h.Err.Error()
		}
	}
	if s.options.Stats != nil {
		m := s.options.Stats()
		out.Keys, out.Places, out.Max, out.Evicted, out.Full = m.Keys, m.Places, m.MaxKeys, m.Evicted, m.FullAllowed+m.FullDenied
	}
	return out
}

func (s *Server) pageLoads() adminpage.Loads {
	now := s.options.loads()
	return adminpage.Loads{
		Hash: now.Hash, LoadedAt: now.LoadedAt, TriedAt: now.AttemptedAt, Errors: now.Errors, Warnings: now.Warnings,
		Succeeded: now.Loads, Refused: now.Refusals, Sources: s.options.Sources, Rules: s.options.Limiter.Rules().Count(),
	}
}
