package admin

import (
	"iter"
	"slices"

	"github.com/weirproxy/weir/internal/admin/page"
	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/limiter"
)

// pageRules returns each rule that counts, once.
func (s *Server) pageRules() iter.Seq[page.Rule] {
	return func(yield func(page.Rule) bool) {
		for r := range s.options.Limiter.Counts() {
			if r.Rule != nil && len(r.Rule.Limits) == 0 && !r.Rule.Unlimited || r.Rule == nil && r.Counts.Total() == (limiter.Tally{}) {
				continue
			}
			d := r.Counts.Total().Decisions
			if !yield(page.Rule{ID: r.Counts, About: func() page.About { return about(r) }, Tally: page.Tally{
				Passed: d[limiter.CodeOK] + d[limiter.CodeUnlimited] + d[limiter.CodeReplaced],
				Denied: d[limiter.CodeOverLimit], Shadowed: d[limiter.CodeShadowed],
			}}) {
				return
			}
		}
	}
}

func about(r limiter.RuleCounts) page.About {
	about := page.About{Domain: r.Domain, Path: r.Path, Limits: []string{}}
	if r.Rule == nil {
		about.Notes = []string{"limits that came with requests"}
		return about
	}
	rule := render.Rule(r.Rule)
	about.File, about.Line = rule.GetFile(), int(rule.GetLine())
	for _, l := range rule.GetLimits() {
		about.Limits = append(about.Limits, render.LimitText(l)+render.ScheduleText(l))
	}
	for note, has := range map[string]bool{"unlimited": rule.GetUnlimited(), "shadow": rule.GetShadowMode(), "quota": rule.GetQuotaMode()} {
		if has {
			about.Notes = append(about.Notes, note)
		}
	}
	slices.Sort(about.Notes)
	return about
}
