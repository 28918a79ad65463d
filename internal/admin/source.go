package admin

import (
	"iter"
	"maps"
	"slices"

	"github.com/weirproxy/weir/internal/admin/page"
	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

// pageSource is the figures of the admin page.
func (s *Server) pageSource() page.Source {
	return page.Source{
		Totals: s.pageTotals, Rules: s.pageRules, Store: s.pageStore, Loads: s.pageLoads,
		Ready: func() string {
			if code, answer := s.ready(); code != 200 {
				return answer
			}
			return ""
		},
	}
}

func (s *Server) pageTotals() page.Totals {
	r := s.options.Limiter.Requests()
	return page.Totals{
		Passed: r.OK, Denied: r.OverLimit, Failed: r.Failed + s.options.Service.Lost(), Unmatched: r.NoMatch, NoDomain: r.DomainNotFound,
		Latency: pageLatency(s.options.Service.Spent()),
	}
}

// pageLatency returns a histogram as the page has it.
func pageLatency(d store.Durations) page.Latency {
	out := page.Latency{Bounds: slices.Sorted(maps.Keys(d.Buckets))}
	for _, bound := range out.Bounds {
		out.Counts = append(out.Counts, d.Buckets[bound])
	}
	out.Counts = append(out.Counts, d.Count)
	return out
}

// pageRules returns each rule that counts, once.
func (s *Server) pageRules() iter.Seq[page.Rule] {
	return func(yield func(page.Rule) bool) {
		for r := range s.options.Limiter.Counts() {
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

// ID implements [page.Rule].
func (r pageRule) ID() any { return r.of.Counts }

// Tally implements [page.Rule].
func (r pageRule) Tally() page.Tally {
	d := r.of.Counts.Total().Decisions
	return page.Tally{
		Passed: d[limiter.CodeOK] + d[limiter.CodeUnlimited] + d[limiter.CodeReplaced], Denied: d[limiter.CodeOverLimit], Shadowed: d[limiter.CodeShadowed],
	}
}

// About implements [page.Rule].
func (r pageRule) About() page.About {
	about := page.About{Domain: r.of.Domain, Path: r.of.Path, Limits: []string{}}
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

func (s *Server) pageStore() page.Store {
	out := page.Store{Kind: "memory"}
	if s.options.Store != nil {
		h := s.options.Store()
		out.Kind, out.Since, out.Without, out.Owed, out.Fleet, out.Latency = h.Kind, h.Since, h.Without, h.Owed, h.Fleet, pageLatency(h.Spent)
		if h.Err != nil {
			out.Reason = h.Err.Error()
		}
	}
	if s.options.Memory != nil {
		m := s.options.Memory()
		out.Keys, out.Places, out.Max, out.Evicted, out.Full = m.Keys, m.Places, m.MaxKeys, m.Evicted, m.FullAllowed+m.FullDenied
	}
	return out
}

func (s *Server) pageLoads() page.Loads {
	now := s.options.loads()
	return page.Loads{
		Hash: now.Hash, LoadedAt: now.LoadedAt, TriedAt: now.AttemptedAt, Errors: now.Errors, Warnings: now.Warnings,
		Succeeded: now.Loads, Refused: now.Refusals, Sources: s.options.Sources, Rules: s.options.Limiter.Rules().Count(),
	}
}
