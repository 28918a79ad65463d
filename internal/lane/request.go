package lane

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
)

// head is the header list of a request, checked. A head does not change, and keeps no bytes of the
// header block.
type head struct {
	ours     bool                // a valid call of the method
	exact    bool                // see Call.Exact
	timeout  time.Duration       // grpc-timeout; 0: not set
	subtype  string              // of the content-type, behind "application/grpc+"
	length   int64               // content-length; -1: not set
	metadata []hpack.HeaderField // of a call, with Options.Metadata
	foreign  []hpack.HeaderField // all fields of a request that is not ours
	refused  *refusal            // the request is answered at once
}

// fieldBytes is the memory of a kept header field, beyond its name and value, in bytes.
const fieldBytes = 64

// size returns the memory of the header fields that a stream keeps, in bytes. Usual requests have
// none.
func (h *head) size() int {
	size := len(h.subtype)
	for i := range h.metadata {
		size += len(h.metadata[i].Name) + len(h.metadata[i].Value) + fieldBytes
	}
	return size
}

// refusal is the answer to a request that the machine does not pass on.
type refusal struct {
	reset   Code   // RST_STREAM with this code, and nothing else; NoError: the rest is sent
	http    int    // status
	code    uint32 // status of gRPC
	message string
}

func refused(code uint32, format string, args ...any) *refusal {
	return &refusal{http: 200, code: code, message: fmt.Sprintf(format, args...)}
}

// The statuses of gRPC that the machine makes.
const (
	statusInvalidArgument   = 3
	statusDeadlineExceeded  = 4
	statusResourceExhausted = 8
	statusUnimplemented     = 12
	statusInternal          = 13
)

const baseContentType = "application/grpc"

// reader turns decoded fields into a head, and notes mistakes in the order in which grpc-go looks
// for them.
type reader struct {
	lane   *Lane
	seen   [kindPseudo]bool // pseudo-header fields
	hosts  int
	method []byte
	path   []byte

	host        []byte
	contentType []byte // not of gRPC
	encoding    []byte // grpc-encoding
	timed       bool   // there is a grpc-timeout
	grpc        bool   // the content-type is of gRPC
	malformed   bool   // RFC 9113, section 8.1.1
	wrong       string // a mistake in a header of gRPC
	head        head
}

func (l *Lane) read(from *fields, foreign bool) head {
	r := reader{lane: l}
	r.head.length = -1
	if from.over {
		return head{refused: &refusal{reset: FrameSizeError}} // as grpc-go
	}
	regular := false
	for i := range from.list {
		f := &from.list[i]
		r.malformed = r.malformed || f.bad || regular && f.kind.pseudo()
		regular = regular || !f.kind.pseudo()
		r.field(f)
	}
	if r.malformed || !r.seen[kindMethod] || !r.seen[kindScheme] || len(r.path) == 0 {
		return head{refused: &refusal{reset: ProtocolError}}
	}
	ours := string(r.path) == l.options.Path
	if !ours && foreign {
		return head{foreign: copies(from.list), length: r.head.length}
	}
	if r.head.refused = r.check(); r.head.refused == nil && !ours {
		r.head.refused = unknown(string(r.path))
	}
	r.head.ours = r.head.refused == nil
	if l.options.Metadata && r.head.ours {
		r.head.metadata = visible(from.list)
		if !r.seen[kindAuthority] {
			r.head.metadata = append(r.head.metadata, hpack.HeaderField{Name: ":authority", Value: string(r.host)})
		}
	}
	return r.head
}

func (r *reader) field(f *field) {
	switch f.kind {
	case kindMethod, kindScheme, kindPath, kindAuthority:
		r.malformed = r.malformed || r.seen[f.kind]
		r.seen[f.kind] = true
		switch f.kind {
		case kindMethod:
			r.method = f.value
		case kindPath:
			r.path = f.value
		default:
		}
	case kindPseudo, kindConnection, kindInvalid:
		r.malformed = true
	case kindTE:
		r.malformed = r.malformed || string(f.value) != "trailers"
	case kindContentLength:
		n, err := strconv.ParseUint(string(f.value), 10, 62)
		r.malformed = r.malformed || err != nil || r.head.length >= 0 && r.head.length != int64(n)
		r.head.length = int64(n)
	case kindHost:
		r.hosts++
		r.host = f.value
	case kindContentType:
		subtype, ok := contentSubtype(f.value)
		if !ok {
			r.contentType = f.value
			break
		}
		r.grpc, r.head.subtype = true, subtype
	case kindTimeout:
		var err error
		if r.head.timeout, err = parseTimeout(f.value); err != nil {
			r.wrong = "malformed grpc-timeout: " + err.Error()
		}
		r.timed = true
	case kindEncoding:
		r.encoding = f.value
	case kindExact:
		r.head.exact = r.head.exact || string(f.value) == "1"
	case kindBinary:
		if _, err := decodeBinary(string(f.value)); err != nil {
			r.wrong = fmt.Sprintf("malformed binary metadata %q in header %q: %v", f.value, f.name, err)
		}
	case kindOther, kindReserved:
	}
}

// check returns the refusal of a request that grpc-go would refuse, or nil.
func (r *reader) check() *refusal {
	hasAuthority := r.seen[kindAuthority]
	switch {
	case r.hosts > 1:
		authorities := 0
		if hasAuthority {
			authorities = 1
		}
		return &refusal{http: 400, code: statusInternal, message: fmt.Sprintf("num values of :authority: %v, num values of host: %v, "+
			"both must only have 1 value as per HTTP/2 spec", authorities, r.hosts)}
	case !r.grpc:
		return &refusal{http: 415, code: statusInvalidArgument, message: fmt.Sprintf("invalid gRPC request content-type %q", r.contentType)}
	case r.wrong != "":
		return &refusal{http: 400, code: statusInternal, message: r.wrong}
	case !hasAuthority && r.hosts == 0:
		return &refusal{http: 400, code: statusInternal, message: "no host or :authority header present"}
	case string(r.method) != "POST":
		return &refusal{
			http: 405, code: statusInternal, message: fmt.Sprintf("Received a HEADERS frame with :method %q which should be POST", r.method),
		}
	case r.timed && r.head.timeout == 0:
		return refused(statusDeadlineExceeded, "context deadline exceeded")
	case len(r.encoding) > 0 && string(r.encoding) != "identity":
		return refused(statusUnimplemented, "grpc-encoding %q: compressed requests are refused, send them without compression", r.encoding)
	}
	return nil
}

func unknown(path string) *refusal {
	name, ok := strings.CutPrefix(path, "/")
	at := strings.LastIndex(name, "/")
	if !ok || at < 0 {
		return refused(statusUnimplemented, "malformed method name: %q", path)
	}
	return refused(statusUnimplemented, "unknown service %s", name[:at])
}

// copies returns header fields that do not belong to the decoder.
func copies(list []field) []hpack.HeaderField {
	all := make([]hpack.HeaderField, len(list))
	for i := range list {
		all[i] = hpack.HeaderField{Name: string(list[i].name), Value: string(list[i].value)}
	}
	return all
}

// visible returns the fields that grpc-go shows to handlers.
func visible(list []field) []hpack.HeaderField {
	var all []hpack.HeaderField
	for i := range list {
		f := &list[i]
		switch f.kind {
		case kindOther, kindContentType, kindContentLength, kindAuthority, kindExact:
			all = append(all, hpack.HeaderField{Name: string(f.name), Value: string(f.value)})
		case kindBinary:
			value, _ := decodeBinary(string(f.value)) // read has checked it
			all = append(all, hpack.HeaderField{Name: string(f.name), Value: string(value)})
		default:
		}
	}
	return all
}

// contentSubtype returns the text behind "application/grpc+", or reports false for another type.
func contentSubtype(value []byte) (subtype string, ok bool) {
	if string(value) == baseContentType {
		return "", true
	}
	rest, ok := bytes.CutPrefix(value, []byte(baseContentType))
	if !ok || rest[0] != '+' && rest[0] != ';' {
		return "", false
	}
	if string(rest) == "+proto" { // of grpc-java and others
		return "proto", true
	}
	return string(rest[1:]), true
}

func decodeBinary(value string) ([]byte, error) {
	if len(value)%4 == 0 {
		return base64.StdEncoding.DecodeString(value)
	}
	return base64.RawStdEncoding.DecodeString(value)
}

// parseTimeout reads a grpc-timeout: up to eight digits and a unit. The errors are the same as in
// grpc-go.
func parseTimeout(text []byte) (time.Duration, error) {
	if len(text) < 2 {
		return 0, fmt.Errorf("transport: timeout string is too short: %q", text)
	}
	if len(text) > 9 {
		return 0, fmt.Errorf("transport: timeout string is too long: %q", text)
	}
	unit := timeoutUnit(text[len(text)-1])
	if unit == 0 {
		return 0, fmt.Errorf("transport: timeout unit is not recognized: %q", text)
	}
	var count time.Duration
	for _, b := range text[:len(text)-1] {
		if b < '0' || b > '9' {
			_, err := strconv.ParseUint(string(text[:len(text)-1]), 10, 64)
			return 0, err
		}
		count = count*10 + time.Duration(b-'0')
	}
	if count > math.MaxInt64/unit {
		return math.MaxInt64, nil
	}
	return count * unit, nil
}

func timeoutUnit(letter byte) time.Duration {
	switch letter {
	case 'H':
		return time.Hour
	case 'M':
		return time.Minute
	case 'S':
		return time.Second
	case 'm':
		return time.Millisecond
	case 'u':
		return time.Microsecond
	case 'n':
		return time.Nanosecond
	}
	return 0
}
