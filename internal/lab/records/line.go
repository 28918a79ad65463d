package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Append appends the line of a record, with its end. Bytes of a text that are no UTF-8 become
// U+FFFD.
func Append(dst []byte, r *Record) []byte {
	dst = append(dst, `{"at":"`...)
	dst = time.Unix(0, int64(r.At)).UTC().AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","domain":`...)
	dst = appendText(dst, r.Request.Domain)
	dst = append(dst, `,"descriptors":[`...)
	for i := range r.Request.Descriptors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendDescriptor(dst, &r.Request.Descriptors[i])
	}
	dst = append(dst, ']')
	if r.Request.Hits > 1 {
		dst = strconv.AppendUint(append(dst, `,"hits":`...), uint64(r.Request.Hits), 10)
	}
	if r.Answer != Unknown {
		dst = strconv.AppendBool(append(dst, `,"over_limit":`...), r.Answer == OverLimit)
	}
	return append(dst, '}', '\n')
}

func appendDescriptor(dst []byte, d *limiter.Descriptor) []byte {
	dst = append(dst, `{"entries":[`...)
	for i, e := range d.Entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendText(append(dst, `{"key":`...), e.Key)
		dst = appendText(append(dst, `,"value":`...), e.Value)
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if d.Hits > 0 || d.Probe {
		dst = strconv.AppendUint(append(dst, `,"hits":`...), d.Hits, 10)
	}
	if d.Refund {
		dst = append(dst, `,"refund":true`...)
	}
	if o := d.Override; o != nil {
		dst = strconv.AppendUint(append(dst, `,"override":{"requests":`...), uint64(o.Requests), 10)
		dst = appendText(append(dst, `,"unit":`...), o.Unit.String())
		if o.Multiplier > 1 {
			dst = strconv.AppendUint(append(dst, `,"multiplier":`...), uint64(o.Multiplier), 10)
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

func appendText(dst []byte, text string) []byte {
	if !plain(text) {
		quoted, err := json.Marshal(text)
		if err == nil { // always, of a string
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), text...), '"')
}

// plain reports whether a text stands for itself between quotes.
func plain(text string) bool {
	high := byte(0)
	for i := range len(text) {
		c := text[i]
		if c < ' ' || c == '"' || c == '\\' {
			return false
		}
		high |= c
	}
	return high < utf8.RuneSelf || utf8.ValidString(text)
}

type document struct {
	At          *string              `json:"at"`
	Domain      string               `json:"domain"`
	Descriptors []descriptorDocument `json:"descriptors"`
	Hits        uint32               `json:"hits"`
	OverLimit   *bool                `json:"over_limit"`
}

type descriptorDocument struct {
	Entries  []entryDocument   `json:"entries"`
	Hits     *uint32           `json:"hits"`
	Refund   bool              `json:"refund"`
	Override *overrideDocument `json:"override"`
}

type entryDocument struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type overrideDocument struct {
	Requests   uint32 `json:"requests"`
	Unit       string `json:"unit"`
	Multiplier uint32 `json:"multiplier"`
}

// parseDocument is parse for any line. The error lists all mistakes of one of the right form.
func parseDocument(line string, r *Record) error {
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	var doc document
	if err := d.Decode(&doc); err != nil {
		return plainer(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the object: must be one object on one line")
	}
	return doc.record(r)
}

// plainer returns an error of package json without Go's types.
func plainer(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		want := map[string]string{
			"string": "a text", "bool": "true or false", "uint32": "a whole number from 0 to 4294967295", "slice": "a list",
		}[wrong.Type.Kind().String()]
		if want == "" {
			want = "an object"
		}
		if wrong.Field == "" {
			return fmt.Errorf("is a JSON %s: must be %s", wrong.Value, want)
		}
		return fmt.Errorf("%s: is a JSON %s: must be %s", wrong.Field, wrong.Value, want)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errCutOff
	}
	if name, found := strings.CutPrefix(err.Error(), "json: unknown field "); found {
		return fmt.Errorf("%s: is not a name of a record, must be at, domain, descriptors, hits or over_limit; "+
			"of a descriptor entries, hits, refund or override; of an entry key or value; of an override requests, unit or multiplier", name)
	}
	return fmt.Errorf("is not JSON: %w", err)
}

var errCutOff = errors.New("is cut off: must be one JSON object on one line")

func (d *document) record(r *Record) error {
	r.Request.Reset()
	r.Request.Domain, r.Request.Hits, r.Answer = d.Domain, d.Hits, Unknown
	if d.OverLimit != nil {
		r.Answer = Passed
		if *d.OverLimit {
			r.Answer = OverLimit
		}
	}
	var errs []error
	switch {
	case d.At == nil:
		errs = append(errs, errors.New("at: is missing: must be an instant such as 2026-11-23T04:31:55.123Z"))
	default:
		var err error
		r.At, err = instant(*d.At)
		errs = append(errs, err)
	}
	if d.Domain == "" {
		errs = append(errs, errors.New("domain: must not be empty"))
	}
	if len(d.Descriptors) == 0 {
		errs = append(errs, errors.New("descriptors: must not be empty"))
	}
	for i := range d.Descriptors {
		if err := d.Descriptors[i].descriptor(r.Request.Add()); err != nil {
			errs = append(errs, fmt.Errorf("descriptors[%d].%w", i, err))
			break // a line may hold many
		}
	}
	return errors.Join(errs...)
}

func (d *descriptorDocument) descriptor(to *limiter.Descriptor) error {
	for i, e := range d.Entries {
		if e.Key == "" {
			return fmt.Errorf("entries[%d].key: must not be empty", i)
		}
		to.Entries = append(to.Entries, limiter.Entry(e))
	}
	if d.Entries == nil {
		return errors.New("entries: is missing: must be a list")
	}
	if d.Hits != nil {
		to.Hits, to.Probe = uint64(*d.Hits), *d.Hits == 0
	}
	to.Refund = d.Refund
	if o := d.Override; o != nil {
		unit, ok := descriptors.ParseUnit(o.Unit)
		if !ok {
			return fmt.Errorf("override.unit: %q: must be second, minute, hour, day, week, month or year", o.Unit)
		}
		to.Override = &limiter.Override{Requests: o.Requests, Unit: unit, Multiplier: o.Multiplier}
	}
	return nil
}

// parse reads a line without its end. The texts of the record are parts of the line, which must not
// change while the record is in use.
//
// Nearly all lines are as [Append] writes them, or as jq does with the keys in that order. For
// these scan is several times faster than package json. Any other line, a wrong one too, is for
// document. A test shows that both read the same.
func parse(line string, r *Record) error {
	s := scan{rest: line}
	if s.record(r) {
		return nil
	}
	return parseDocument(line, r)
}

// scan reads a line from left to right. A method returns false at a part that it does not know.
type scan struct{ rest string }

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
	if !s.skip(`{"at":`) || !s.text(&at) || !s.skip(`,"domain":`) || !s.text(&r.Request.Domain) ||
		r.Request.Domain == "" || !s.skip(`,"descriptors":[`) {
		return false
	}
	var err error
	if r.At, err = instant(at); err != nil {
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

func instant(text string) (algorithms.Instant, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || strings.Contains(text, ",") {
		return 0, fmt.Errorf("at: %.40q: must be an instant such as 2026-11-23T04:31:55.123Z", text)
	}
	if seconds := t.Unix(); seconds < 0 || seconds >= endOfTime {
		return 0, fmt.Errorf("at: %.40q: must be from 1970 to 2260", text)
	}
	return algorithms.Instant(t.UnixNano()), nil
}
