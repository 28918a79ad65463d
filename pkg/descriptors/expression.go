package descriptors

import (
	"encoding/binary"
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

// run is a part of an expression: a text, or bytes of a set, as many as there are.
type run struct {
	text        string  // "" for bytes of a set
	set         byteSet // the first byte
	least, most int     // bytes of the set
}

// byteSet has a bit for each byte of ASCII. The bits of its last byte are for all other bytes.
type byteSet [utf8.RuneSelf/8 + 1]byte

// endless is more bytes than a value has that an expression looks at.
const endless = maxRegexValue + 1

// newExpression returns the program of a simple regular expression: texts and repeated classes of
// characters, such as `/v[0-9]+/.*`. The next byte decides whether a repetition goes on. For other
// expressions the program is "".
func newExpression(e *syntax.Regexp) program {
	if parts := e.Sub; e.Op == syntax.OpConcat { // the anchors say nothing new
		if parts[0].Op == syntax.OpBeginText {
			parts = parts[1:]
		}
		if last := len(parts) - 1; last >= 0 && parts[last].Op == syntax.OpEndText {
			parts = parts[:last]
		}
		e = &syntax.Regexp{Op: syntax.OpConcat, Sub: parts}
	}
	runs, ok := appendRuns(nil, e)
	for i, s := range runs {
		for j := i + 1; j < len(runs) && s.least != s.most; j++ {
			if ok = ok && !s.set.meets(runs[j].set); runs[j].least > 0 {
				break
			}
		}
	}
	if !ok {
		return ""
	}
	return runsProgram(runs)
}

// appendRuns appends the runs of an expression; ok is false if it has other parts.
func appendRuns(dst []run, e *syntax.Regexp) (runs []run, ok bool) {
	s, of := run{least: 1, most: 1}, e
	switch e.Op {
	case syntax.OpEmptyMatch:
		return dst, true
	case syntax.OpCapture:
		return appendRuns(dst, e.Sub[0])
	case syntax.OpConcat:
		ok = true
		for i := 0; ok && i < len(e.Sub); i++ {
			dst, ok = appendRuns(dst, e.Sub[i])
		}
		return dst, ok
	case syntax.OpStar:
		s.least, s.most, of = 0, -1, e.Sub[0]
	case syntax.OpPlus:
		s.most, of = -1, e.Sub[0]
	case syntax.OpQuest:
		s.least, of = 0, e.Sub[0]
	case syntax.OpRepeat:
		s.least, s.most, of = e.Min, e.Max, e.Sub[0]
	case syntax.OpLiteral:
		s.text = string(e.Rune)
		of = &syntax.Regexp{Op: e.Op, Flags: e.Flags, Rune: e.Rune[:1]}
	default: // a class, or another part
	}
	if s.most < 0 {
		s.most = endless
	}
	s.set, ok = newByteSet(of)
	// A character beyond ASCII has several bytes: so many characters are not so many bytes.
	if beyond := s.set[len(s.set)-1] != 0; beyond && (s.least > 1 || s.most != endless) || len(s.text) != len(e.Rune) && s.text != "" {
		ok = false
	}
	return append(dst, s), ok
}

// newByteSet returns the bytes of a class of characters, or of one character. ok is false for other
// expressions, such as a class that has some of the characters beyond ASCII, but not all.
func newByteSet(e *syntax.Regexp) (s byteSet, ok bool) {
	bounds := e.Rune
	switch {
	case e.Op == syntax.OpAnyChar:
		bounds = []rune{0, unicode.MaxRune}
	case e.Op == syntax.OpAnyCharNotNL:
		bounds = []rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune}
	case e.Op == syntax.OpLiteral && len(e.Rune) == 1 && e.Flags&syntax.FoldCase == 0:
		bounds = []rune{e.Rune[0], e.Rune[0]}
	case e.Op != syntax.OpCharClass:
		return s, false
	}
	for i := 0; i < len(bounds); i += 2 {
		for r := bounds[i]; r <= min(bounds[i+1], unicode.MaxASCII); r++ {
			s[r>>3] |= 1 << (r & 7)
		}
		switch {
		case bounds[i+1] <= unicode.MaxASCII:
		case bounds[i] <= utf8.RuneSelf && bounds[i+1] == unicode.MaxRune:
			s[len(s)-1] = 0xff
		default:
			return s, false
		}
	}
	return s, true
}

// meets reports whether two sets have a common byte.
func (s byteSet) meets(o byteSet) bool {
	for i := range s {
		if s[i]&o[i] != 0 {
			return true
		}
	}
	return false
}

// runsProgram returns the program of runs, with a look at the length of the value behind the first
// text.
func runsProgram(runs []run) program {
	var p []byte
	if len(runs) > 0 && runs[0].text != "" {
		p, runs = appendStep(p, textStep, runs[0].text), runs[1:]
	}
	p = appendStep(p, shortStep, "")
	for _, s := range runs {
		if s.text != "" {
			p = appendStep(p, textStep, s.text)
			continue
		}
		arg := binary.LittleEndian.AppendUint16(s.set[:], uint16(s.least))
		p = appendStep(p, runStep, string(binary.LittleEndian.AppendUint16(arg, uint16(s.most))))
	}
	return program(p)
}

// cutRun cuts bytes of a set off a value.
func cutRun(value, arg string) (rest string, ok bool) {
	const last = len(byteSet{}) - 1
	least, most := int(arg[last+1])|int(arg[last+2])<<8, int(arg[last+3])|int(arg[last+4])<<8
	n := 0
	for n < len(value) && n < most {
		if c := value[n]; arg[min(c>>3, byte(last))]>>(c&7)&1 == 0 {
			break
		}
		n++
	}
	return value[n:], n >= least
}
