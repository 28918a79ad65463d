package simulate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
)

const worstKeys = 10

// Kinds of a Rule.
const (
	kindRule     = "rule"
	kindNone     = "no rule"
	kindOverride = "override"
)

// Denials compares how often the rules deny with how often the other rules do. All numbers but
// Denied and NewlyDenied are 0 without other rules.
type Denials struct {
	Denied       uint64 `json:"denied"`
	DeniedBefore uint64 `json:"denied_before"` // of the same
	NewlyDenied  uint64 `json:"newly_denied"`  // passed before
	NewlyPassed  uint64 `json:"newly_passed"`  // denied before
}

func (d *Denials) add(denied, was bool) {
	if denied {
		d.Denied++
	}
	if was {
		d.DeniedBefore++
	}
	if denied && !was {
		d.NewlyDenied++
	}
	if was && !denied {
		d.NewlyPassed++
	}
}

// Result compares the answers.
type Result struct {
	Requests uint64    `json:"requests"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Denials

	Recorded       uint64 `json:"recorded"`        // requests with a recorded answer
	RecordedDenied uint64 `json:"recorded_denied"` // of these

	Refused uint64 `json:"refused"` // requests with a mistake, which are not in the numbers of rules
	Refusal string `json:"refusal"` // the first of these mistakes

	CarryOver int      `json:"carry_over,omitempty"` // limits with another algorithm or period than before; a reload would keep the used hits
	StartAnew []string `json:"start_anew,omitempty"` // limits whose counts would start anew

	Rules   []Rule `json:"rules"`   // that a descriptor has met, in the order of the rules; then descriptors without a rule
	Evicted uint64 `json:"evicted"` // keys that found no room in memory, or were forgotten to make room: the answers may be too mild
}

// Rule is the descriptors that met one rule.
type Rule struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"` // the path; "" for descriptors without a rule
	Kind   string `json:"kind"` // "rule", "no rule", or "override" for limits that came with requests and met no rule
	File   string `json:"file"`
	Line   int    `json:"line"`

	Requests uint64 `json:"requests"` // descriptors that met the rule
	Hits     uint64 `json:"hits"`     // of these; refunds do not count
	Denials
	Shadowed uint64 `json:"shadowed"` // denied, but for shadow mode

	KeysDenied   int   `json:"keys_denied"`   // keys with a denial
	KeysAffected int   `json:"keys_affected"` // keys with more denials than before, or fewer
	AtLeast      bool  `json:"at_least"`      // there may be more keys than in both numbers: the bound of tracked keys was reached
	Worst        []Key `json:"worst"`         // the keys that lose most, at most 10
}

// Key is the denials of one key.
type Key struct {
	Key          string `json:"key"` // readable, or the key of the store if one cannot read it
	Denied       uint64 `json:"denied"`
	DeniedBefore uint64 `json:"denied_before"`
}

// Result returns the result so far.
func (s *Simulation) Result() Result {
	r := s.sum
	r.From, r.To, r.Rules = time.Unix(0, int64(s.first)).UTC(), time.Unix(0, int64(s.last)).UTC(), []Rule{}
	if s.refusal != nil {
		r.Refusal = s.refusal.Error()
	}
	for _, rule := range s.rules.All() {
		if row := &s.rows[rule.ID]; row.Requests > 0 {
			to := row.result()
			to.Domain, to.Rule, to.Kind, to.File, to.Line = rule.Domain, rule.Path, kindRule, rule.File, rule.Line
			r.Rules = append(r.Rules, to)
		}
	}
	names := slices.SortedFunc(maps.Keys(s.rest), func(a, b restName) int {
		return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.kind, b.kind))
	})
	for _, name := range names {
		to := s.rest[name].result()
		to.Domain, to.Kind = name.domain, name.kind
		r.Rules = append(r.Rules, to)
	}
	for _, w := range s.worlds {
		st := w.Counts.Stats()
		r.Evicted += st.Evicted + st.FullAllowed + st.FullDenied + st.FullHoldersAllowed + st.FullHoldersDenied
	}
	return r
}

func (r *row) result() Rule {
	to := r.Rule
	to.Worst = []Key{}
	var worst []Key
	for key, t := range r.keys {
		if t.denied > 0 {
			to.KeysDenied++
		}
		if t.denied != t.was {
			to.KeysAffected++
		}
		if t.denied > t.was {
			worst = append(worst, Key{key, t.denied, t.was})
		}
	}
	slices.SortFunc(worst, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Denied-b.DeniedBefore, a.Denied-a.DeniedBefore), cmp.Compare(a.Key, b.Key))
	})
	for _, k := range worst[:min(len(worst), worstKeys)] {
		k.Key = descriptors.ReadableKey(k.Key)
		to.Worst = append(to.Worst, k)
	}
	return to
}

// Exceeds returns the places where more than a part of the requests is denied: of all requests, and
// of the requests of each rule. With other rules only those denials count that are new.
func (r *Result) Exceeds(part float64) []Excess {
	var all []Excess
	if of := share(r.NewlyDenied, r.Requests); of > part {
		all = append(all, Excess{Where: "all requests", Part: of})
	}
	for i := range r.Rules {
		rule := &r.Rules[i]
		if of := share(rule.NewlyDenied, rule.Requests); of > part {
			all = append(all, Excess{Where: rule.Name(), Part: of})
		}
	}
	return all
}

// Excess is a place with too many denials.
type Excess struct {
	Where string  // a rule, or "all requests"
	Part  float64 // of the requests there, from 0 to 1
}

func share(some, all uint64) float64 {
	if all == 0 {
		return 0
	}
	return float64(some) / float64(all)
}

// Name returns the domain and the rule in words.
func (r *Rule) Name() string {
	switch r.Kind {
	case kindRule:
		return r.Domain + " " + r.Rule
	default:
		return r.Domain + " (" + r.Kind + ")"
	}
}
