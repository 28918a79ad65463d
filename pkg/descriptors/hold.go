package descriptors

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// maxHolderKey bounds a holder's key, in bytes: a few aliases of a long text would take much time.
const maxHolderKey = 256

// Holds reports whether the rule has a limit with holders; false for nil. Such a rule has Begin and
// End.
func (r *Rule) Holds() bool { return r != nil && r.Begin != "" }

// Pairs reports whether both ends of a holder of the rule have one key; false for nil.
func (r *Rule) Pairs() bool { return r.Holds() && r.Begin == r.End }

// Holder returns the phase of a descriptor, [algorithms.HoldBegin], [algorithms.HoldEnd] or
// [algorithms.HoldPair], and the name of its holder, perhaps empty. The phase is 0 for a rule
// without holders. The rule must match the descriptor.
func (r *Rule) Holder(entries []Entry) (phase algorithms.HoldPhase, name string) {
	if !r.Holds() || len(entries) == 0 {
		return 0, ""
	}
	switch last := &entries[len(entries)-1]; {
	case len(entries) <= len(r.Levels) || !r.ends(entries[len(r.Levels):]):
		return 0, ""
	case r.Pairs():
		return algorithms.HoldPair, last.Value
	case last.Key == r.Begin:
		return algorithms.HoldBegin, last.Value
	case last.Key == r.End:
		return algorithms.HoldEnd, last.Value
	}
	return 0, ""
}

// ends reports whether rest is a holder, perhaps with the tokens of the request before it. rest is
// the entries of a descriptor behind the entries of the rule, which has holders. A priced rule
// needs the tokens.
func (r *Rule) ends(rest []Entry) bool {
	if last := rest[len(rest)-1].Key; last != r.Begin && last != r.End {
		return false
	}
	return len(rest) == 1 && !r.Priced || len(rest) == 2 && rest[0].Key == UsageKey
}

// Usage returns the value of the entry of [UsageKey] of a descriptor. The rule must be priced, and
// match the descriptor.
func (r *Rule) Usage(entries []Entry) string { return entries[len(r.Levels)].Value }

// WithHolder returns the entries of a descriptor with a holder without a name, under key. The rule
// must match the descriptor, perhaps without its holder. A priced rule gets a usage without tokens.
func (r *Rule) WithHolder(entries []Entry, key string) []Entry {
	all := slices.Clone(r.WithoutHolder(entries))
	if r.Priced {
		all = append(all, Entry{Key: UsageKey, Value: NoUsage})
	}
	return append(all, Entry{Key: key})
}

// WithoutHolder returns the entries of a descriptor that the rule matches, without the entries of a
// usage and of a holder.
func (r *Rule) WithoutHolder(entries []Entry) []Entry {
	if r.Holds() && len(entries) > len(r.Levels) {
		return entries[:len(r.Levels)]
	}
	return entries
}

type hold struct {
	begin, end     string // the same of a pair
	beginAt, endAt value
	pairs          bool
}

func (t *tree) readHold(v value, fs fields, l *limit) {
	at, given := fs.get("hold")
	switch {
	case !given && l.Algorithm == algorithms.Concurrency:
		t.fail(v, "has no hold, which concurrency needs: must have one such as hold: {begin: request, end: request_done, at_most: 60s}")
		return
	case !given:
		return
	}
	in, ok := t.fields(at, holdForm)
	if !ok {
		return
	}
	l.hold = new(hold)
	if l.hold.pairs = in.has("pair"); l.hold.pairs {
		t.readPair(in, at, fs, l.hold)
	} else {
		l.hold.begin, l.hold.beginAt = t.holderKey(in, at, "begin")
		l.hold.end, l.hold.endAt = t.holderKey(in, at, "end")
		if l.hold.begin != "" && l.hold.begin == l.hold.end {
			t.fail(l.hold.endAt, "is %s, as begin is: the two must differ; pair is for one key at both ends", quote(l.hold.end))
		}
	}
	l.AtMost = t.atMost(in, at)
	l.GivesBack = t.onRunOut(in, l.Algorithm)
	t.readEstimate(in, &l.Limit)
	if c, ok := fs.get("count_rejected"); ok && l.Algorithm == algorithms.Concurrency {
		t.fail(c, "has no meaning for concurrency, must be left out: a denied request holds nothing")
	}
	if s, ok := fs.get("sharing"); ok && l.Sharing == SharingLeased {
		t.warn(s, s.line, "has no effect: a limit with hold is never leased")
	}
}

// readPair decodes the key of both ends of a holder.
func (t *tree) readPair(in fields, at value, fs fields, h *hold) {
	h.begin, h.beginAt = t.holderKey(in, at, "pair")
	h.end, h.endAt = h.begin, h.beginAt
	for _, key := range [...]string{"begin", "end"} {
		if other, both := in.get(key); both {
			t.fail(other, "stands beside pair, which is the key at both ends: must be begin and end, or pair")
		}
	}
	if other, both := fs.get("prices"); both {
		t.fail(other, "stands beside hold.pair: both ends of a pair have one descriptor, and so one usage: the client must send the price as hits")
	}
}

func (t *tree) holderKey(fs fields, v value, key string) (string, value) {
	text, at, ok := t.textOf(fs, v, key)
	switch {
	case !ok:
		return "", at
	case text == "":
		t.fail(at, "is missing or empty, must be the key of the entry that names a holder, as Envoy sends it")
		return "", at
	case len(text) > maxHolderKey:
		t.fail(at, "has %d bytes, must have at most %d", len(text), maxHolderKey)
		return "", at
	}
	t.checkBlanks(at, text)
	return text, at
}

// atMost decodes at_most, 0 after a mistake.
func (t *tree) atMost(fs fields, v value) time.Duration {
	at, given := fs.get("at_most")
	if !given {
		t.fail(v.under("at_most"), "is missing, must be a duration such as 60s: the longest time that a request may take")
		return 0
	}
	return t.duration(at)
}

// onRunOut reports whether on_run_out says that held hits come back.
func (t *tree) onRunOut(fs fields, a algorithms.Algorithm) bool {
	at, given := fs.get("on_run_out")
	if !given {
		return false
	}
	text, ok := t.text(at)
	switch {
	case !ok:
	case a == algorithms.Concurrency:
		t.fail(at, "has no meaning for concurrency, must be left out: slots are always free after at_most")
	case text == "give_back":
		return true
	case text != "keep":
		t.fail(at, "is %s, must be keep or give_back", quote(text))
	}
	return false
}

// checkHolds records mistakes about holders, once the descriptors below are decoded.
func (t *tree) checkHolds(all []limit, below *node) {
	var first *hold
	for i := range all {
		h := all[i].hold
		if h == nil {
			continue
		}
		if first == nil {
			first = h
		}
		t.checkSame(h.begin, h.beginAt, first.begin, first.beginAt)
		t.checkSame(h.end, h.endAt, first.end, first.endAt)
	}
	if first == nil {
		return
	}
	if first.pairs {
		t.checkPairs(all, first, below.rule)
	}
	check := func(key string, at value) {
		if b := below.keys[key]; b != nil && key != "" {
			t.fail(at, "is %s, which is the key of a descriptor below%s: the two must differ", quote(key), line(", in line %d", b.firstLine()))
		}
	}
	check(first.begin, first.beginAt)
	if !first.pairs {
		check(first.end, first.endAt)
	}
	if b := below.keys[UsageKey]; b != nil {
		t.fail(first.beginAt, "stands above a descriptor with the key %s%s: that entry has the tokens of a request with a holder",
			UsageKey, line(", in line %d", b.firstLine()))
	}
}

// checkPairs records limits beside a pair whose charges depend on the end, which the store alone
// finds.
func (t *tree) checkPairs(all []limit, first *hold, rule *Rule) {
	for i := range all {
		if all[i].hold == nil {
			t.fail(all[i].at, "has no hold beside a limit with pair%s, and would count both ends: all limits of the descriptor must have hold",
				line(", in line %d", first.beginAt.line))
		}
	}
	if rule.Group.Rank > 0 {
		t.fail(first.beginAt, "stands in a descriptor with group: the end of a pair does not say which group served, must be begin and end")
	}
}

// checkSame records limits of a descriptor with different keys of holders; "": another mistake.
func (t *tree) checkSame(key string, at value, first string, firstAt value) {
	if key != "" && first != "" && key != first {
		t.fail(at, "is %s beside %s%s: must be the same in all limits of a descriptor", quote(key), quote(first),
			line(" in line %d", firstAt.line))
	}
}

func (b *branch) firstLine() int {
	first := 0
	for n := range b.nodes {
		if first == 0 || n.rule.Line < first {
			first = n.rule.Line
		}
	}
	return first
}
