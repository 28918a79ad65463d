package descriptors

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/internal/spelling"
)

// candidates is texts, and how similar each is to another text.
type candidates struct {
	to      string // the text to compare with
	pattern spelling.Pattern
	all     []candidate
	more    bool // texts were left out
}

// candidate is one text with its distance.
type candidate struct {
	text     string
	distance int
	meant    bool // comes before others of the same distance
}

func newCandidates(to string) *candidates { return &candidates{to: to, pattern: spelling.New(to)} }

// add adds a text whose part like is compared. add reports false, and leaves the text out, when c
// already has maxCompared texts.
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
