package watch

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/pkg/descriptors"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Message is an encoded WatchResponse. A Go message would take a dozen parts for each request, and
// several times as long.
type Message []byte

// encoder appends fields in the protobuf encoding. As the encoding of proto3 wants, fields with
// their zero value are left out.
type encoder struct {
	dst    []byte
	known  map[*descriptors.Limit][]byte // encoded limits
	misses int                           // bytes of the nearest misses
}

// maxMisses bounds the nearest misses of a message, in bytes. One descriptor of a few bytes may
// have one of 10 KB.
const maxMisses = 1 << 20

func (e *encoder) number(field protowire.Number, n uint64) {
	if n != 0 {
		e.dst = protowire.AppendVarint(protowire.AppendTag(e.dst, field, protowire.VarintType), n)
	}
}

func (e *encoder) flag(field protowire.Number, on bool) { e.number(field, protowire.EncodeBool(on)) }

func (e *encoder) text(field protowire.Number, text string) {
	if text != "" {
		e.dst = protowire.AppendString(protowire.AppendTag(e.dst, field, protowire.BytesType), valid(text))
	}
}

// begin begins a message in a field. end needs the result.
func (e *encoder) begin(field protowire.Number) int {
	e.dst = append(protowire.AppendTag(e.dst, field, protowire.BytesType), 0)
	return len(e.dst)
}

// end ends a message, and puts its length before it.
func (e *encoder) end(from int) {
	n := len(e.dst) - from
	more := protowire.SizeVarint(uint64(n)) - 1 // than the one byte that begin has kept free
	for range more {
		e.dst = append(e.dst, 0)
	}
	copy(e.dst[from+more:], e.dst[from:from+n])
	protowire.AppendVarint(e.dst[:from-1], uint64(n))
}

// time appends a Timestamp or a Duration.
func (e *encoder) time(field protowire.Number, seconds, nanos int64) {
	from := e.begin(field)
	e.number(1, uint64(seconds))
	e.number(2, uint64(nanos))
	e.end(from)
}

func (e *encoder) duration(field protowire.Number, d time.Duration) {
	e.time(field, int64(d/time.Second), int64(d%time.Second))
}

// message returns requests as a message. rules returns the rules in force, size is the memory of
// the requests in bytes.
func message(rules func() *descriptors.Rules, events []*event, size int, leftOut, lost uint64) (Message, error) {
	e := encoder{dst: make([]byte, 0, size/2), known: make(map[*descriptors.Limit][]byte)}
	for _, one := range events {
		from := e.begin(1) // requests
		if err := e.request(rules, one); err != nil {
			return nil, err
		}
		e.end(from)
	}
	e.number(2, leftOut) // left_out
	e.number(3, lost)    // lost
	return e.dst, nil
}

// request appends the fields of a WatchedRequest.
func (e *encoder) request(rules func() *descriptors.Rules, r *event) error {
	e.time(1, r.begun.Unix(), int64(r.begun.Nanosecond())) // at
	e.duration(2, r.took)                                  // took
	e.text(3, r.domain)                                    // domain
	for i := range r.descriptors {
		d := &r.descriptors[i]
		from := e.begin(4) // descriptors
		var miss *adminv1.NearestMiss
		if e.misses < maxMisses {
			miss = nearest(rules, r, d)
		}
		if err := e.descriptor(d, r.told, miss); err != nil {
			return err
		}
		e.end(from)
	}
	e.flag(5, r.overLimit) // over_limit
	e.text(6, r.failure)   // error
	return nil
}

// descriptor appends the fields of a WatchedDescriptor.
func (e *encoder) descriptor(d *descriptor, told bool, miss *adminv1.NearestMiss) error {
	for i := range d.entries {
		from := e.begin(1) // entries
		e.text(1, d.entries[i].Key)
		e.text(2, d.entries[i].Value)
		e.end(from)
	}
	e.number(2, uint64(d.hits))    // hits
	e.number(3, uint64(d.outcome)) // outcome
	if d.rule != nil {
		e.text(4, d.rule.Path)           // rule
		e.text(5, d.rule.File)           // file
		e.number(6, uint64(d.rule.Line)) // line
	}
	for i := range d.limits {
		from := e.begin(7) // limits
		if err := e.limit(&d.limits[i], told); err != nil {
			return err
		}
		e.end(from)
	}
	if miss != nil {
		from := e.begin(8) // nearest_miss
		var err error
		if e.dst, err = (proto.MarshalOptions{}).MarshalAppend(e.dst, miss); err != nil {
			return err
		}
		e.misses += len(e.dst) - from
		e.end(from)
	}
	if d.grant != nil {
		e.text(9, d.grant.ID) // grant
	}
	e.flag(10, d.override) // override
	return nil
}

// limit appends the fields of a WatchedLimit.
func (e *encoder) limit(l *limit, told bool) error {
	e.text(1, l.key) // key
	of, known := e.known[l.limit]
	if !known {
		var err error
		if of, err = proto.Marshal(render.Limit(l.limit)); err != nil {
			return err
		}
		e.known[l.limit] = of
	}
	e.dst = protowire.AppendBytes(protowire.AppendTag(e.dst, 2, protowire.BytesType), of) // limit
	e.flag(3, l.decision.Allowed)                                                         // allowed
	e.number(4, uint64(l.decision.Remaining))                                             // remaining
	e.duration(5, l.decision.RetryAfter)                                                  // retry_after
	e.duration(6, l.decision.ResetAfter)                                                  // reset_after
	if told {
		e.text(7, render.Source(l.source)) // source
	}
	if l.grant != nil {
		e.text(8, l.grant.ID) // grant
	}
	return nil
}

// nearest returns the place where the search for a descriptor ended without a rule of its own; nil
// when there is such a rule.
func nearest(rules func() *descriptors.Rules, e *event, d *descriptor) *adminv1.NearestMiss {
	switch {
	case d.outcome == adminv1.Outcome_OUTCOME_NO_DOMAIN:
		beside, more := rules().NearestDomains(e.domain)
		return &adminv1.NearestMiss{Beside: beside, Why: noDomain(e.domain, beside, more)}
	case e.rules == nil:
		return nil
	case d.outcome != adminv1.Outcome_OUTCOME_UNMATCHED && d.outcome != adminv1.Outcome_OUTCOME_NOT_LIMITED &&
		(d.rule == nil || d.rule != e.rules.Default):
		return nil
	}
	m := e.rules.Nearest(d.entries)
	out := &adminv1.NearestMiss{File: e.rules.File, Line: uint32(e.rules.Line), Entry: uint32(m.Entry), Beside: m.Beside, Why: m.String()}
	if m.Rule != nil {
		out.Rule, out.File, out.Line = m.Rule.Path, m.Rule.File, uint32(m.Rule.Line)
	}
	return out
}

// noDomain says that a domain has no rules.
func noDomain(domain string, beside []string, more bool) string {
	text := fmt.Sprintf("domain %.200q: no rules are in force", domain)
	if len(beside) > 0 {
		text = fmt.Sprintf("domain %.200q: the rules have %s", domain, strings.Join(beside, ", "))
	}
	if more {
		text += " and more"
	}
	return text
}

// valid returns a text that a message may have.
func valid(text string) string {
	if utf8.ValidString(text) { // a fifth of the time of ToValidUTF8
		return text
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
