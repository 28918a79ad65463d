package descriptors

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/internal/spelling"
)

// MaxBeside is the most entries in Miss.Beside.
const MaxBeside = 20

// maxCompared bounds the entries that [Domain.Nearest] compares. A place may have a million.
const maxCompared = 256

const maxBesideBytes = 256

// Miss is the place in the tree of a domain where the search for a descriptor ended, without a
// limit.
type Miss struct {
	Rule    *Rule    // the deepest node that the search reached; nil at the root of the domain
	Entry   int      // index of the entry that led nowhere; the number of entries when the rules need more entries
	Beside  []string // the entries that the place has, as "key" or "key=value", the most similar first; at most MaxBeside
	More    bool     // the place has other entries too
	Swapped int      // index of a later entry that the place does have; -1 without one

	entry Entry // with the index Entry
	known bool  // the place has the key of the entry, and not its value
	hold  bool  // the missing entry names a holder
}

// Nearest returns the place where [Domain.Match] ended without a rule, or at a rule without a
// limit. The cost does not grow with the number of rules, but the result is for people and not for
// the path of a request.
func (d *Domain) Nearest(entries []Entry) Miss {
	n, m := &d.root, Miss{Swapped: -1}
	for i, e := range entries {
		last := i == len(entries)-1
		if n.rule.Holds() && n.rule.ends(entries[i:]) {
			m.Entry = len(entries)
			return m
		}
		next := n.next(e.Key, e.Value, last)
		if next == nil {
			if needs := n.lacking(e, last); needs != nil {
				m.Rule, m.Entry, m.hold, m.Beside = needs, len(entries), true, needs.tails()
				return m
			}
			m.Entry, m.entry = i, e
			m.known = n.keys[e.Key] != nil
			m.Beside, m.More = n.beside(e)
			for later := i + 1; later < len(entries) && m.Swapped < 0; later++ {
				if n.next(entries[later].Key, entries[later].Value, false) != nil {
					m.Swapped = later
				}
			}
			return m
		}
		m.Rule, n = next.rule, next
	}
	m.Entry = len(entries)
	m.Beside, m.More = n.beside(Entry{})
	return m
}

// lacking returns the rule that an entry of a descriptor leads to, or belongs to, and that needs
// more entries; else nil.
func (n *node) lacking(e Entry, last bool) *Rule {
	if n.rule.Holds() && n.rule.Priced && (e.Key == UsageKey || e.Key == n.rule.Begin || e.Key == n.rule.End) {
		return n.rule
	}
	if needs := n.next(e.Key, e.Value, false); last && needs != nil {
		return needs.rule
	}
	return nil
}

// tails returns the keys that a descriptor of the rule, which has holders, must end in.
func (r *Rule) tails() []string {
	switch {
	case r.Priced:
		return []string{UsageKey + "," + r.Begin, UsageKey + "," + r.End}
	case r.Pairs():
		return []string{r.Begin}
	}
	return []string{r.Begin, r.End}
}

// String returns the reason in words for people. The words may change.
func (m Miss) String() string {
	this := "this level has " + strings.Join(m.Beside, ", ")
	if len(m.Beside) == 0 {
		this = "this level has no entries"
	}
	if m.More {
		this += " and more"
	}
	switch {
	case m.hold && m.Rule.Priced:
		return fmt.Sprintf("entries are missing for the tokens and a holder: %s", strings.Join(m.Beside, " or "))
	case m.hold:
		return fmt.Sprintf("an entry is missing that names a holder: %s", strings.Join(m.Beside, " or "))
	case m.entry.Key == "" && m.Rule != nil && len(m.Beside) > 0:
		return fmt.Sprintf("no entry follows %s, which has no limit: %s", m.Rule.Path, this)
	case m.entry.Key == "":
		return "no limit is here"
	}
	text := fmt.Sprintf("key %.200q: %s", m.entry.Key, this)
	if m.known {
		text = fmt.Sprintf("value %.200q of key %.200q: %s", m.entry.Value, m.entry.Key, this)
	}
	if m.Swapped >= 0 {
		text += fmt.Sprintf("; entry %d would match here, so the entries may have another order than the rules", m.Swapped)
	}
	return text
}

// NearestDomains returns the names of at most MaxBeside domains, the most similar to the name
// first, and whether there are more.
func (r *Rules) NearestDomains(name string) (names []string, more bool) {
	c := newCandidates(name)
	for other := range r.domains {
		if !c.add(other, other) {
			break
		}
	}
	return c.list()
}

// beside returns entries of a node, the most similar to e first. If the node has the key of e, the
// entries are other values of the key, else all keys. An empty e is similar to nothing.
func (n *node) beside(e Entry) (all []string, more bool) {
	if b := n.keys[e.Key]; b != nil {
		c := newCandidates(e.Value)
		b.addTo(c, e.Key, func(value string) string { return value })
		return c.list()
	}
	c := newCandidates(e.Key)
	for _, key := range firstKeys(n.keys) {
		n.keys[key].addTo(c, key, func(string) string { return key })
	}
	c.more = c.more || len(n.keys) > maxCompared
	return c.list()
}

// addTo adds the entries of a branch, each compared by the text that like returns for its value.
func (b *branch) addTo(c *candidates, key string, like func(value string) string) {
	if b.rest != nil {
		c.add(key, like(""))
	}
	var meant []string // found also where there are too many entries to compare
	if len(b.exact) > maxCompared {
		meant = variants(c.to)
	}
	for _, value := range meant {
		if b.exact[value] != nil {
			c.addMeant(key+"="+value, like(value))
		}
	}
	for _, values := range [...]map[string]*node{b.exact, b.matchers} {
		for value := range values {
			if !slices.Contains(meant, value) && !c.add(key+"="+value, like(value)) {
				return
			}
		}
	}
}

func firstKeys(keys map[string]*branch) []string {
	if len(keys) <= maxCompared {
		return slices.Collect(maps.Keys(keys))
	}
	first := make([]string, 0, maxCompared)
	for key := range keys {
		if first = append(first, key); len(first) == maxCompared {
			break
		}
	}
	return first
}

// variants returns texts that somebody may have meant who wrote this one.
func variants(text string) []string {
	path, _, _ := strings.Cut(text, "?")
	return []string{strings.ToLower(text), strings.ToUpper(text), strings.TrimSpace(text), path, strings.TrimSuffix(path, "/"), path + "/"}
}

// candidates is texts, and how similar each is to another text.
type candidates struct {
	to      string // the text to compare with
	pattern spelling.Pattern
	all     []candidate
	more    bool // texts were left out
}

type candidate struct {
	text     string
	distance int
	meant    bool // comes before others of the same distance
}

func newCandidates(to string) *candidates { return &candidates{to: to, pattern: spelling.New(to)} }

// add adds a text whose part like is compared; false when there are maxCompared already.
func (c *candidates) add(text, like string) bool {
	if len(c.all) == maxCompared {
		c.more = true
		return false
	}
	c.all = append(c.all, candidate{text: shortened(text), distance: c.pattern.Distance(like)})
	return true
}

// addMeant is add for a text that somebody probably meant.
func (c *candidates) addMeant(text, like string) {
	if c.add(text, like) {
		c.all[len(c.all)-1].meant = true
	}
}

// list returns at most MaxBeside texts, the most similar first, and whether there are more.
func (c *candidates) list() (texts []string, more bool) {
	slices.SortFunc(c.all, func(a, b candidate) int {
		if a.distance == b.distance && a.meant != b.meant {
			if a.meant {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.distance, b.distance), strings.Compare(a.text, b.text))
	})
	for _, one := range slices.Compact(c.all) {
		if len(texts) == MaxBeside {
			return texts, true
		}
		texts = append(texts, one.text)
	}
	return texts, c.more
}

func shortened(text string) string {
	if len(text) <= maxBesideBytes {
		return text
	}
	cut := maxBesideBytes
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

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
	NoHolder               // as NoMatch: the only rules that match the last entry need more entries: a holder, and a usage if they are priced
	Tokens                 // the usage of a descriptor of a priced rule
	Pair                   // as Begin, and the holder begins or ends
	Matched                // as Wildcard, for a match: the first in file order
)

// Step is the search for one entry of a descriptor in the tree of a domain.
type Step struct {
	Entry   Entry
	Reason  Reason
	Pattern string // the value as configured, of a Wildcard or a Matched
	Why     string // of a Matched: the part of the pattern that the value matches; "" without parts
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
	case Matched:
		text := fmt.Sprintf("%s: match %s", entry, s.Pattern)
		if s.Why != "" {
			text += ": " + s.Why
		}
		return text
	case KeyOnly:
		return entry + ": key only"
	case Begin:
		return entry + ": begins a hold"
	case End:
		return entry + ": ends a hold"
	case Pair:
		return entry + ": begins a hold, or ends it"
	case NoHolder:
		if s.Rule.Priced {
			return fmt.Sprintf("%s: its rule has prices, and needs two more entries: %s", entry, strings.Join(s.Rule.tails(), " or "))
		}
		return fmt.Sprintf("%s: its rule has hold, and needs one more entry: %s", entry, strings.Join(s.Rule.tails(), " or "))
	case Tokens:
		return entry + ": the tokens"
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
		if n.rule.Holds() && n.rule.ends(entries[i:]) {
			if s.Rule = n.rule; !last {
				s.Reason = Tokens
				steps, s.Entry = append(steps, s), entries[i+1]
			}
			switch s.Reason = End; {
			case n.rule.Pairs():
				s.Reason = Pair
			case s.Entry.Key == n.rule.Begin:
				s.Reason = Begin
			}
			return append(steps, s)
		}
		next := n.next(e.Key, e.Value, last)
		if next == nil {
			if needs := n.lacking(e, last); needs != nil {
				s.Reason, s.Rule = NoHolder, needs
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
			l := &next.rule.Levels[len(next.rule.Levels)-1]
			if s.Reason, s.Pattern = Wildcard, l.Value; l.Match != nil {
				s.Reason, s.Why = Matched, l.Match.why(e.Value)
			}
		}
		steps = append(steps, s)
		n = next
	}
	return steps
}
