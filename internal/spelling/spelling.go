// Package spelling measures how near two names are, so that an error can suggest the name that
// somebody meant. The package does not decide which distance is near enough: a setting of 30 bytes
// allows for more mistakes than a key of 4.
package spelling

// MaxBytes is the number of bytes of a text that count: the bits of a word.
const MaxBytes = 64

// Pattern is a text prepared for comparisons. The zero value is the empty text. Safe for concurrent
// use.
type Pattern struct {
	length int
	at     [256]uint64 // by byte: a bit for each place in the text that has the byte
}

// New returns the pattern of a text, of which the first MaxBytes bytes count.
func New(text string) Pattern {
	var p Pattern
	p.length = min(len(text), MaxBytes)
	for i := range p.length {
		p.at[folded(text[i])] |= 1 << i
	}
	return p
}

// Distance returns the smallest number of steps that turn one text into the other, from 0 to
// MaxBytes. A step inserts, removes or replaces a byte, or swaps two neighbors that no other step
// changes (the optimal string alignment distance). Upper case counts as lower case, and '-' as '_',
// in ASCII. Of text too, the first MaxBytes bytes count.
//
// The bit vectors come from Myers, "A fast bit-vector algorithm for approximate string matching
// based on dynamic programming", JACM 46 (1999). The form of the vectors, and the swaps, come from
// Hyyrö, "A bit-vector algorithm for computing Levenshtein and Damerau edit distances" (2003).
func (p *Pattern) Distance(text string) int {
	text = text[:min(len(text), MaxBytes)]
	if p.length == 0 {
		return len(text)
	}
	up, down, score := ^uint64(0), uint64(0), p.length // vertical differences of +1 and -1, and the distance so far
	diagonal, before := uint64(0), uint64(0)           // of the last byte: where the diagonal difference is 0, and the places of the byte
	last := uint64(1) << (p.length - 1)
	for i := range len(text) {
		equal := p.at[folded(text[i])]
		swapped := (^diagonal & equal) << 1 & before
		diagonal = ((equal & up) + up) ^ up | equal | down | swapped
		right, left := down|^(diagonal|up), diagonal&up // horizontal differences of +1 and -1
		if right&last != 0 {
			score++
		}
		if left&last != 0 {
			score--
		}
		right = right<<1 | 1
		up, down, before = left<<1|^(diagonal|right), diagonal&right, equal
	}
	return score
}

// Nearest returns the name at the smallest distance from a text, the first of several; "" if no
// distance is at most the bound. No name is near a text of more than MaxBytes bytes.
func Nearest(text string, names []string, most int) (nearest string) {
	if len(text) > MaxBytes {
		return ""
	}
	written := New(text)
	for _, n := range names {
		if d := written.Distance(n); d <= most {
			nearest, most = n, d-1
		}
	}
	return nearest
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
