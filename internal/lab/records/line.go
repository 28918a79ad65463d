package records

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

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

// appendText appends a text as JSON.
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
