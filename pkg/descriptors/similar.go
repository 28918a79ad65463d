package descriptors

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// candidates is texts, and how similar each is to another text.
type candidates struct {
	to      string // the text to compare with
	pattern pattern
	all     []candidate
	more    bool // texts were left out
}

// candidate is one text with its distance.
type candidate struct {
	text     string
	distance int
	meant    bool // comes before others of the same distance
}

func newCandidates(to string) *candidates { return &candidates{to: to, pattern: newPattern(to)} }

// add adds a text whose part like is compared. add reports false, and leaves the text out, when c already has maxCompared texts.
func (c *candidates) add(text, like string) bool {
	if len(c.all) == maxCompared {
		c.more = true
		return false
	}
	c.all = append(c.all, candidate{text: shortened(text), distance: c.pattern.distance(like)})
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

// shortened returns the beginning of a long text, and an ellipsis.
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

// pattern is a text prepared for the comparison with others, of which only the first 64 bytes count. Upper case counts as lower case, and '-'
// as '_'.
type pattern struct {
	length int
	at     [256]uint64 // by byte: a bit for each place in the text that has the byte
}

// maxPattern is the number of bits in a word.
const maxPattern = 64

func newPattern(text string) pattern {
	var p pattern
	p.length = min(len(text), maxPattern)
	for i := range p.length {
		p.at[folded(text[i])] |= 1 << i
	}
	return p
}

// distance returns the smallest number of bytes to insert, remove or replace that turns one text into the other (Levenshtein). The bit
// vectors come from Myers, "A fast bit-vector algorithm for approximate string matching based on dynamic programming", JACM 46 (1999). The
// form of the vectors comes from Hyyrö, "A bit-vector algorithm for computing Levenshtein and Damerau edit distances" (2003).
func (p *pattern) distance(text string) int {
	text = text[:min(len(text), maxPattern)]
	if p.length == 0 {
		return len(text)
	}
	up, down, score := ^uint64(0), uint64(0), p.length // vertical differences of +1 and -1, and the distance so far
	last := uint64(1) << (p.length - 1)
	for i := range len(text) {
		equal := p.at[folded(text[i])]
		vertical := equal | down
		horizontal := ((equal & up) + up) ^ up | equal
		right, left := down|^(horizontal|up), up&horizontal // horizontal differences of +1 and -1
		if right&last != 0 {
			score++
		}
		if left&last != 0 {
			score--
		}
		right = right<<1 | 1
		up, down = left<<1|^(vertical|right), right&vertical
	}
	return score
}

// folded returns a byte as the comparison sees it.
func folded(b byte) byte {
	switch {
	case b >= 'A' && b <= 'Z':
		return b + 'a' - 'A'
	case b == '-':
		return '_'
	default:
		return b
	}
}
