package descriptors

import "fmt"

// Reason is the way in which an entry led to a node.
type Reason uint8

// The reasons.
const (
	NoMatch  Reason = iota // no descriptor matches the entry: the search ended
	Exact                  // a descriptor has its key and value
	Wildcard               // of the wildcards of its key, the first in file order that the value matches
	KeyOnly                // a descriptor has its key and no value
	Begin                  // the last entry names a holder of the rule of the entries before, which begins
	End                    // the same, and the holder ends
	NoHolder               // as NoMatch: the only rules that match the last entry need one more entry, which names a holder
)

// Step is the search for one entry of a descriptor in the tree of a domain.
type Step struct {
	Entry   Entry
	Reason  Reason
	Pattern string // the value as configured, of a Wildcard
	Rule    *Rule  // of the node that the entry led to; nil for NoMatch; of NoHolder, the rule that needs a holder
}

// String returns the step in words for people.
func (s Step) String() string {
	entry := fmt.Sprintf("%s=%s", s.Entry.Key, s.Entry.Value)
	switch s.Reason {
	case Exact:
		return entry + ": exact value"
	case Wildcard:
		return fmt.Sprintf("%s: wildcard %s", entry, s.Pattern)
	case KeyOnly:
		return entry + ": key only"
	case Begin:
		return entry + ": begins a hold"
	case End:
		return entry + ": ends a hold"
	case NoHolder:
		return fmt.Sprintf("%s: its rule has hold, and needs one more entry: %s or %s", entry, s.Rule.Begin, s.Rule.End)
	default:
		return entry + ": no descriptor for it here"
	}
}

// Trace returns how [Domain.Match] finds the rule of the descriptor with these entries: a step for
// each entry. The steps end early with a NoMatch or a NoHolder. Trace is for explanations, not for
// the path of a request.
func (d *Domain) Trace(entries []Entry) []Step {
	steps := make([]Step, 0, len(entries))
	n := &d.root
	for i, e := range entries {
		s := Step{Entry: e}
		last := i == len(entries)-1
		if last && n.names(e.Key) {
			if s.Rule, s.Reason = n.rule, End; e.Key == n.rule.Begin {
				s.Reason = Begin
			}
			return append(steps, s)
		}
		next := n.next(e.Key, e.Value, last)
		if next == nil {
			if needs := n.next(e.Key, e.Value, false); needs != nil {
				s.Reason, s.Rule = NoHolder, needs.rule
			}
			return append(steps, s)
		}
		s.Rule = next.rule
		switch b := n.keys[e.Key]; {
		case b.exact[e.Value] == next:
			s.Reason = Exact
		case b.rest == next:
			s.Reason = KeyOnly
		default:
			s.Reason, s.Pattern = Wildcard, next.rule.Levels[len(next.rule.Levels)-1].Value
		}
		steps = append(steps, s)
		n = next
	}
	return steps
}
