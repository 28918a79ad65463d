package server

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// rulesPage is what /rules shows.
type rulesPage struct {
	Sources     []string   `json:"sources"` // as named to the program
	LoadedAt    *time.Time `json:"loaded_at"`
	AttemptedAt *time.Time `json:"attempted_at"`
	Loads       uint64     `json:"loads"`
	Refusals    uint64     `json:"refusals"`
	Errors      []string   `json:"errors"` // of the last attempt
	Warnings    []string   `json:"warnings"`
	Rules       []ruleLine `json:"rules"`
}

// ruleLine is one rule. What it does not have is left out.
type ruleLine struct {
	Domain         string         `json:"domain"`
	Path           string         `json:"path"`
	File           string         `json:"file"`
	Line           int            `json:"line"`
	Name           string         `json:"name,omitempty"`
	Replaces       []string       `json:"replaces,omitempty"`
	Unlimited      bool           `json:"unlimited,omitempty"`
	Shadow         bool           `json:"shadow_mode,omitempty"`
	Quota          bool           `json:"quota_mode,omitempty"`
	DetailedMetric bool           `json:"detailed_metric,omitempty"`
	Metadata       map[string]any `json:"metadata,omitempty"`
	Limits         []limitLine    `json:"limits,omitempty"`
}

// limitLine is one limit, in the words of rule files.
type limitLine struct {
	Name           string `json:"name,omitempty"`
	Algorithm      string `json:"algorithm"`
	Requests       uint32 `json:"requests_per_unit"`
	Unit           string `json:"unit,omitempty"` // where the period is a whole number of units
	UnitMultiplier uint32 `json:"unit_multiplier,omitempty"`
	Period         string `json:"period"`
	Burst          uint32 `json:"burst,omitempty"`
	CountRejected  bool   `json:"count_rejected"`
	OnStoreError   string `json:"on_store_error,omitempty"` // where the documents say
}

// rules shows what is loaded, from where and since when, and what became of the last attempt to load.
func (s *Server) rules(w http.ResponseWriter, _ *http.Request) {
	now := s.options.Limiter.Status()
	page := rulesPage{
		Sources:     orEmpty(s.options.Sources),
		LoadedAt:    orNull(now.LoadedAt),
		AttemptedAt: orNull(now.AttemptedAt),
		Loads:       now.Loads,
		Refusals:    now.Refusals,
		Errors:      orEmpty(now.Errors),
		Warnings:    warningTexts(now.Warnings),
		Rules:       make([]ruleLine, 0, now.Rules.Len()),
	}
	for _, r := range now.Rules.All() {
		page.Rules = append(page.Rules, newRuleLine(r))
	}
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	_ = e.Encode(page) // the client is gone
}

func newRuleLine(r *descriptors.Rule) ruleLine {
	line := ruleLine{
		Domain:         r.Domain,
		Path:           r.Path,
		File:           r.File,
		Line:           r.Line,
		Name:           r.Name,
		Replaces:       r.Replaces,
		Unlimited:      r.Unlimited,
		Shadow:         r.Shadow,
		Quota:          r.Quota,
		DetailedMetric: r.DetailedMetric,
		Metadata:       r.Metadata,
	}
	for i := range r.Limits {
		l := &r.Limits[i]
		limit := limitLine{
			Name:          l.Name,
			Algorithm:     l.Algorithm.String(),
			Requests:      l.Requests,
			Period:        l.Period.String(),
			Burst:         l.Burst,
			CountRejected: l.CountRejected,
			OnStoreError:  onStoreError(l),
		}
		if l.Unit != descriptors.UnitUnknown {
			limit.Unit = l.Unit.String()
		}
		if l.Multiplier > 1 {
			limit.UnitMultiplier = l.Multiplier
		}
		line.Limits = append(line.Limits, limit)
	}
	return line
}

// warningTexts returns the warnings as texts, never nil.
func warningTexts(all []descriptors.Warning) []string {
	texts := make([]string, len(all))
	for i := range all {
		texts[i] = all[i].String()
	}
	return texts
}

// orEmpty keeps nil lists from becoming null.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// orNull makes null of a time that never was.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
