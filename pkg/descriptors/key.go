package descriptors

import (
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// NewLimit returns a limit with the end of its keys filled in. unit and multiplier are what is reported to clients; they
// are not compared with l.Period. ordinal tells apart the limits of one rule that have the same algorithm and period: 1
// for the first of them, 2 for the second and so on; anything below 1 counts as 1.
func NewLimit(l algorithms.Limit, unit Unit, multiplier uint32, countRejected bool, ordinal int) Limit {
	b := append([]byte{'#'}, l.Algorithm.String()...)
	b = appendPeriod(append(b, '/'), l.Period)
	if ordinal > 1 {
		b = strconv.AppendInt(append(b, '.'), int64(ordinal), 10)
	}
	return Limit{Limit: l, CountRejected: countRejected, Unit: unit, Multiplier: multiplier, suffix: string(b)}
}

// AppendKey appends to dst the key under which the descriptor's own hits are counted: that of an override, and of a
// domain's default. It is the key that a rule without share_threshold gives the same descriptor, so an override and a rule
// of the same algorithm and period share one count. The limit must come from [Load] or [NewLimit].
//
// A key is text, readable where domain and entries are:
//
//	4:edge|4:path=7:/search|9:client_id=2:c1#token_bucket/1s
//
// that is the domain, each entry's key and value, and which limit: algorithm, period and, for a rule's second limit of the
// same two, ".2". Every text stands behind its length in bytes, so that no two different descriptors have the same key
// whatever they hold. Requests and burst are not part of it: counts outlive their change.
func AppendKey(dst []byte, domain string, entries []Entry, limit *Limit) []byte {
	dst = appendText(dst, ':', domain)
	for i := range entries {
		dst = appendText(append(dst, '|'), ':', entries[i].Key)
		dst = appendText(append(dst, '='), ':', entries[i].Value)
	}
	return append(dst, limit.suffix...)
}

// AppendKey appends to dst the key of a charge for one of the rule's limits, made by a descriptor that the rule matches. It
// is that of the function [AppendKey], but a level with share_threshold gives its pattern instead of the value, marked as
// such ("6*free_*" for "6:free_a"), so that all values of the pattern share one count, and none with the value "free_*" of
// a rule that does not share.
func (r *Rule) AppendKey(dst []byte, domain string, entries []Entry, limit *Limit) []byte {
	dst = appendText(dst, ':', domain)
	for i := range entries {
		dst = appendText(append(dst, '|'), ':', entries[i].Key)
		if i < len(r.levels) && r.levels[i].shared {
			dst = appendText(append(dst, '='), '*', r.levels[i].value)
		} else {
			dst = appendText(append(dst, '='), ':', entries[i].Value)
		}
	}
	return append(dst, limit.suffix...)
}

// KeyDomain returns the domain in a key that either AppendKey made, as a part of key: "edge" of the key above. It is nil when
// the key is none of theirs.
func KeyDomain(key []byte) []byte {
	domain, mark, rest := cutText(key)
	if mark != ':' || len(rest) == 0 || rest[0] != '|' && rest[0] != '#' {
		return nil
	}
	return domain
}

// cutText takes a text off the front of a key: what stands behind its length and a mark. Without one mark is 0.
func cutText(key []byte) (text []byte, mark byte, rest []byte) {
	length, digits := 0, 0
	for digits < len(key) && digits <= maxDigits && key[digits] >= '0' && key[digits] <= '9' {
		length = 10*length + int(key[digits]-'0')
		digits++
	}
	if digits == 0 || digits > maxDigits || digits > 1 && key[0] == '0' || len(key)-digits-1 < length {
		return nil, 0, nil
	}
	if mark = key[digits]; mark != ':' && mark != '*' {
		return nil, 0, nil
	}
	text, rest = key[digits+1:digits+1+length:digits+1+length], key[digits+1+length:]
	return text, mark, rest
}

// maxDigits is more than the length of any text has, and few enough for an int.
const maxDigits = 9

// appendText appends a text behind its length in bytes and a mark.
func appendText(dst []byte, mark byte, text string) []byte {
	dst = append(strconv.AppendInt(dst, int64(len(text)), 10), mark)
	return append(dst, text...)
}

// appendPeriod appends a period as a whole number of the largest of d, h, m, s, ms, us and ns.
func appendPeriod(dst []byte, period time.Duration) []byte {
	unit, name := time.Nanosecond, "ns"
	switch {
	case period%(24*time.Hour) == 0:
		unit, name = 24*time.Hour, "d"
	case period%time.Hour == 0:
		unit, name = time.Hour, "h"
	case period%time.Minute == 0:
		unit, name = time.Minute, "m"
	case period%time.Second == 0:
		unit, name = time.Second, "s"
	case period%time.Millisecond == 0:
		unit, name = time.Millisecond, "ms"
	case period%time.Microsecond == 0:
		unit, name = time.Microsecond, "us"
	}
	return append(strconv.AppendInt(dst, int64(period/unit), 10), name...)
}
