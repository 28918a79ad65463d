package watch

import (
	"fmt"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Bounds of a filter: its work for each request is bounded.
const (
	maxFilterEntries = 16
	maxFilterText    = 4 << 10 // bytes of each text
)

// filter chooses requests. Immutable.
type filter struct {
	domain, rule string // "" for all
	entries      []descriptors.Entry
	outcomes     uint // a bit for each; 0 for all
	denied       bool // only requests that were answered OVER_LIMIT
	quotas       bool // also reports and assignments of RLQS
}

// newFilter returns the filter of a WatchRequest. The error is the first number or text out of
// bounds.
func newFilter(in *adminv1.WatchRequest) (filter, error) {
	f := filter{domain: in.GetDomain(), rule: in.GetRule(), quotas: in.GetQuotas()}
	texts := map[string]string{"domain": f.domain, "rule": f.rule}
	for i, e := range in.GetEntries() {
		if e.GetKey() == "" {
			return f, fmt.Errorf("entries[%d].key: must not be empty", i)
		}
		f.entries = append(f.entries, descriptors.Entry{Key: e.GetKey(), Value: e.GetValue()})
		texts[fmt.Sprintf("entries[%d].key", i)], texts[fmt.Sprintf("entries[%d].value", i)] = e.GetKey(), e.GetValue()
	}
	if len(f.entries) > maxFilterEntries {
		return f, fmt.Errorf("entries: %d are given, must be at most %d", len(f.entries), maxFilterEntries)
	}
	for name, text := range texts {
		if len(text) > maxFilterText {
			return f, fmt.Errorf("%s: has %d bytes, must have at most %d", name, len(text), maxFilterText)
		}
	}
	for i, o := range in.GetOutcomes() {
		if o == adminv1.Outcome_OUTCOME_UNSPECIFIED || adminv1.Outcome_name[int32(o)] == "" {
			return f, fmt.Errorf("outcomes[%d]: %d: must be an outcome from 1 to %d", i, o, len(adminv1.Outcome_name)-1)
		}
		f.outcomes |= 1 << o
	}
	if n := in.GetMaxPerSecond(); n > maxPerSecond {
		return f, fmt.Errorf("max_per_second: %d: must be at most %d", n, maxPerSecond)
	}
	return f, nil
}

// chooses reports whether all filters choose one descriptor of a request. A failed request without
// descriptors counts as one without entries.
func (f *filter) chooses(o *limiter.Observed) bool {
	if f.domain != "" && f.domain != o.Request.Domain || f.denied && (o.Err != nil || !o.Verdict.OverLimit) {
		return false
	}
	if f.rule == "" && f.outcomes == 0 && len(f.entries) == 0 {
		return true
	}
	if o.Err != nil {
		if f.rule != "" || f.outcomes != 0 && f.outcomes&(1<<adminv1.Outcome_OUTCOME_FAILED) == 0 {
			return false
		}
		if len(f.entries) == 0 {
			return true
		}
	}
	for i := range o.Request.Descriptors {
		if o.Err == nil && !f.choosesStatus(o.Verdict, i) {
			continue
		}
		if f.choosesEntries(o.Request.Descriptors[i].Entries) {
			return true
		}
	}
	return false
}

// choosesStatus reports whether the filters of rules and outcomes choose descriptor i.
func (f *filter) choosesStatus(v *limiter.Verdict, i int) bool {
	if rule := v.Statuses[i].Rule; f.rule != "" && (rule == nil || rule.Path != f.rule) {
		return false
	}
	return f.outcomes == 0 || f.outcomes&(1<<outcome(v, i)) != 0
}

// choosesEntries reports whether the filter of entries chooses a descriptor with these entries.
func (f *filter) choosesEntries(entries []descriptors.Entry) bool {
	for _, want := range f.entries {
		found := false
		for i := range entries {
			if e := &entries[i]; e.Key == want.Key && (want.Value == "" || e.Value == want.Value) {
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	return true
}

func outcome(v *limiter.Verdict, i int) adminv1.Outcome {
	s := &v.Statuses[i]
	switch s.Outcome {
	case limiter.Unlimited:
		return adminv1.Outcome_OUTCOME_UNLIMITED
	case limiter.Replaced:
		return adminv1.Outcome_OUTCOME_REPLACED
	case limiter.Limited:
		switch {
		case s.OverLimit:
			return adminv1.Outcome_OUTCOME_OVER_LIMIT
		case s.Shadowed:
			return adminv1.Outcome_OUTCOME_SHADOWED
		default:
			return adminv1.Outcome_OUTCOME_OK
		}
	case limiter.NoLimit:
	}
	switch {
	case v.Domain() == nil:
		return adminv1.Outcome_OUTCOME_NO_DOMAIN
	case s.Rule == nil:
		return adminv1.Outcome_OUTCOME_UNMATCHED
	default:
		return adminv1.Outcome_OUTCOME_NOT_LIMITED
	}
}
