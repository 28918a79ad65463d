package descriptors

import (
	"encoding/binary"
	"strings"

	"github.com/weirproxy/weir/internal/ranges"
)

// program is a pattern as steps, which are one text: a test of a value reads few bytes of memory.
// Each step is its kind and the length of its argument in four bytes, and the argument. A step
// takes bytes off the value, or has the verdict. A value that is empty behind the last step
// matches.
type program string

// stepKind is the kind of a step.
type stepKind uint8

const (
	textStep    stepKind = iota // the value begins with the argument
	suffixStep                  // the value ends with the argument
	findStep                    // the value has the argument: up to its first place
	runStep                     // the value begins with bytes of a set, see run
	queryStep                   // the value may end with `?` and more
	segmentStep                 // the value begins with a segment of a path, which is not empty
	rangesStep                  // last: the value is an address in the packed ranges
	eitherStep                  // the argument is a program, and may have the verdict on the whole value
	notStep                     // the verdict is the other one
	shortStep                   // without a verdict on a value too long for expressions
	restStep                    // last: the value may have any other bytes
	moreStep                    // last: without a verdict
)

// anything matches every value.
const anything = program("\x0a\x00\x00\x00")

// kindBits is the bits of a kind in the first bytes of a step.
const kindBits = 4

// appendStep appends a step. The argument has less than 256 MiB, as a path has.
func appendStep(dst []byte, kind stepKind, arg string) []byte {
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(arg))<<kindBits|uint32(kind)), arg...)
}

// appendTextStep appends a step for a text, and none for an empty one.
func appendTextStep(dst []byte, kind stepKind, text string) []byte {
	if text == "" {
		return dst
	}
	return appendStep(dst, kind, text)
}

// newWildcard returns the program of a text with at least one `*`, each of which stands for zero or
// more characters. Prefix and suffix are anchored. The parts between them are searched from left to
// right. The leftmost match of a part leaves most of the value to the other parts: no other match
// need be tried.
//
// Given the text of another pattern, the program matches if it matches every value of that pattern.
// No step has a `*`, so that only a `*` of the program can match a `*` of the text.
func newWildcard(text string) program {
	parts := strings.Split(text, "*")
	last := len(parts) - 1
	p := appendTextStep(make([]byte, 0, len(text)+16), textStep, parts[0])
	p = appendTextStep(p, suffixStep, parts[last])
	for _, part := range parts[1:last] {
		p = appendTextStep(p, findStep, part)
	}
	return program(appendStep(p, restStep, ""))
}

// eitherProgram returns the program of values that match one of several patterns.
func eitherProgram(parts []*Matcher) program {
	var p []byte
	last := len(parts) - 1
	for _, part := range parts[:last] {
		p = appendStep(p, eitherStep, string(part.program))
	}
	return program(append(p, parts[last].program...))
}

// cut returns the first step, and the steps after it.
func (p program) cut() (kind stepKind, arg string, rest program) {
	head := uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16 | uint32(p[3])<<24
	end := 4 + int(head>>kindBits)
	return stepKind(head & (1<<kindBits - 1)), string(p[4:end]), p[end:]
}

// test returns the verdict on a value. Maybe means that the program has none.
func (p program) test(value string) verdict {
	size := len(value)
	for p != "" {
		var kind stepKind
		var arg string
		ok := true
		switch kind, arg, p = p.cut(); kind {
		case textStep:
			value, ok = strings.CutPrefix(value, arg)
		case suffixStep:
			value, ok = strings.CutSuffix(value, arg)
		case findStep:
			_, value, ok = strings.Cut(value, arg)
		case runStep:
			value, ok = cutRun(value, arg)
		case queryStep:
			value, _, _ = strings.Cut(value, "?")
		case segmentStep:
			end := strings.IndexByte(value, '/')
			if end < 0 {
				end = len(value)
			}
			value, ok = value[end:], end > 0
		case rangesStep:
			return verdictOf(ranges.PackedHas(arg, value))
		case eitherStep:
			if v := program(arg).test(value); v != no {
				return v
			}
		case notStep:
			return yes - p.test(value)
		case shortStep:
			if size > maxRegexValue {
				return maybe
			}
		case restStep:
			return yes
		default:
			return maybe
		}
		if !ok {
			return no
		}
	}
	return verdictOf(value == "")
}

// ends returns texts with which all matching values begin and end, and reports whether all values
// with that beginning match.
func (p program) ends() (prefix, suffix string, all bool) {
	kind, arg, rest := p.cut()
	if kind == textStep {
		if prefix = arg; rest == "" {
			return prefix, "", false
		}
		kind, arg, _ = rest.cut()
	}
	if kind == suffixStep {
		suffix = arg
	}
	return prefix, suffix, kind == restStep
}

// overlaps reports whether some value matches both wildcards: the longer prefix and suffix, and all
// between.
func (p program) overlaps(o program) bool {
	prefix, suffix, _ := p.ends()
	others, ends, _ := o.ends()
	return (strings.HasPrefix(prefix, others) || strings.HasPrefix(others, prefix)) &&
		(strings.HasSuffix(suffix, ends) || strings.HasSuffix(ends, suffix))
}
