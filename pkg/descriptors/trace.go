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
)

// Step is the search for one entry of a descriptor in the tree of a domain.
type Step struct {
	Entry   Entry
	Reason  Reason
	Pattern string // the value as configured, of a Wildcard
	Rule    *Rule  // of the node that the entry led to; nil for NoMatch
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
	default:
		return entry + ": no descriptor for it here"
	}
}

// Trace returns how [Domain.Match] finds the rule of the descriptor with these entries: a step for each entry, ending early
// with a NoMatch. Trace is for explanations, not for the path of a request.
func (d *Domain) Trace(entries []Entry) []Step {
	steps := make([]Step, 0, len(entries))
	n := &d.root
	for _, e := range entries {
		s := Step{Entry: e}
		next := n.next(e.Key, e.Value)
		if next == nil {
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
