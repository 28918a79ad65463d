package records

import (
	"math"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/pkg/limiter"
)

// parse reads a line without its end. The texts of the record are parts of the line, which must not
// change while the record is in use.
//
// Nearly all lines are as [Append] writes them, or as jq does with the keys in that order. For
// these scan is several times faster than package json. Any other line, a wrong one too, is for
// document. A test shows that both read the same.
func parse(line string, last *second, r *Record) error {
	s := scan{rest: line, last: last}
	if s.record(r) {
		return nil
	}
	return parseDocument(line, r)
}

// scan reads a line from left to right. A method returns false at a part that it does not know.
type scan struct {
	rest string
	last *second // of the line before
}

// skip skips a text.
func (s *scan) skip(text string) bool {
	rest, found := strings.CutPrefix(s.rest, text)
	if found {
		s.rest = rest
	}
	return found
}

func (s *scan) record(r *Record) bool {
	r.Request.Reset()
	r.Answer = Unknown
	var at string
	if !s.skip(`{"at":`) || !s.text(&at) || !s.skip(`,"domain":`) || !s.text(&r.Request.Domain) || r.Request.Domain == "" || !s.skip(`,"descriptors":[`) {
		return false
	}
	var err error
	if r.At, err = s.last.instant(at); err != nil {
		return false
	}
	for {
		if !s.descriptor(r.Request.Add()) {
			return false
		}
		if s.skip("]") {
			break
		}
		if !s.skip(",") {
			return false
		}
	}
	if s.skip(`,"hits":`) {
		n, ok := s.number()
		if !ok {
			return false
		}
		r.Request.Hits = n
	}
	switch {
	case s.skip(`,"over_limit":false`):
		r.Answer = Passed
	case s.skip(`,"over_limit":true`):
		r.Answer = OverLimit
	}
	return s.rest == "}"
}

func (s *scan) descriptor(d *limiter.Descriptor) bool {
	if !s.skip(`{"entries":[`) {
		return false
	}
	for !s.skip("]") {
		if len(d.Entries) > 0 && !s.skip(",") {
			return false
		}
		var e limiter.Entry
		if !s.skip(`{"key":`) || !s.text(&e.Key) || e.Key == "" || !s.skip(`,"value":`) || !s.text(&e.Value) || !s.skip("}") {
			return false
		}
		d.Entries = append(d.Entries, e)
	}
	if s.skip(`,"hits":`) {
		n, ok := s.number()
		if !ok {
			return false
		}
		d.Hits, d.Probe = uint64(n), n == 0
	}
	d.Refund = s.skip(`,"refund":true`)
	return s.skip("}")
}

// text reads a text without escapes.
func (s *scan) text(to *string) bool {
	if s.rest == "" || s.rest[0] != '"' {
		return false
	}
	high := byte(0)
	for i := 1; i < len(s.rest); i++ {
		c := s.rest[i]
		switch {
		case c == '"':
			*to = s.rest[1:i]
			s.rest = s.rest[i+1:]
			return high < utf8.RuneSelf || utf8.ValidString(*to)
		case c < ' ' || c == '\\':
			return false
		}
		high |= c
	}
	return false
}

// number reads a whole number of 32 bits.
func (s *scan) number() (uint32, bool) {
	n, digits := uint64(0), 0
	for digits < len(s.rest) && digits < 11 && s.rest[digits] >= '0' && s.rest[digits] <= '9' {
		n = 10*n + uint64(s.rest[digits]-'0')
		digits++
	}
	if digits == 0 || n > math.MaxUint32 || digits > 1 && s.rest[0] == '0' {
		return 0, false
	}
	s.rest = s.rest[digits:]
	return uint32(n), true
}
