package descriptors

import (
	"fmt"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Sharing decides how processes share the count of a limit that a shared store keeps.
type Sharing uint8

// The choices.
const (
	SharingUnset   Sharing = iota // the document does not say
	SharingLeased                 // a process may take hits of a hot key in advance, and spend these hits by itself
	SharingExact                  // the store decides each hit
	SharingDivided                // each process has a part of the limit, see Rule.Divided
)

// String returns the name as in rule files; "unset" for SharingUnset.
func (s Sharing) String() string {
	if names := [...]string{"unset", "leased", "exact", "divided"}; int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("sharing(%d)", uint8(s))
}

// sharings is the choices of sharing.
const sharings = "leased, exact or divided"

// checkDivided looks at the sharing of the next limit of a rule. Processes have parts of all limits
// of a rule, or of none.
func (t *tree) checkDivided(rule *Rule, l *limit) {
	says := l.Sharing == SharingDivided
	if len(rule.Limits) > 0 && rule.Divided != says {
		t.fail(l.at, "has another sharing than the limit before: all limits of a rule must have sharing: divided, or none")
	}
	rule.Divided = says
	if !says {
		return
	}
	if l.hold != nil || l.Escalate != nil || len(l.replaces) > 0 || rule.Group.Rank > 0 {
		t.fail(l.at, "has sharing: divided, must have leased or exact: a limit with hold, escalate, group or replaces cannot be divided")
	} else if err := l.CheckDivided(); err != nil {
		t.fail(l.at, "has sharing: divided, must have leased or exact: %v", err)
	}
}

func (t *tree) sharingOf(fs fields, l *Limit) Sharing {
	s := choice(t, fs, "sharing", SharingDivided, sharings)
	if s != SharingLeased {
		return s
	}
	at, _ := fs.get("sharing")
	switch {
	case l.Algorithm == algorithms.SlidingWindowLog:
		t.warn(at, at.line, "has no effect: sliding_window_log is never leased")
	case l.CountRejected && l.Algorithm != algorithms.FixedWindow:
		t.warn(at, at.line, "has no effect: with count_rejected only fixed_window is leased")
	}
	return s
}
