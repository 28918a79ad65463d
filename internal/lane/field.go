package lane

import (
	"bytes"

	"golang.org/x/net/http/httpguts"
)

// kind is the meaning of a header field, by its name.
type kind uint8

const (
	kindOther kind = iota
	kindMethod
	kindScheme
	kindPath
	kindAuthority
	kindPseudo // any other name that begins with a colon
	kindHost
	kindContentType
	kindContentLength
	kindTimeout    // grpc-timeout
	kindEncoding   // grpc-encoding
	kindReserved   // of gRPC, and no metadata
	kindTE         // te
	kindConnection // of HTTP/1 connections: forbidden
	kindExact      // ExactHeader
	kindBinary     // ends in -bin
	kindInvalid    // not a name of a field
)

func (k kind) pseudo() bool { return k >= kindMethod && k <= kindPseudo }

// field is one header field. The bytes belong to the table of an HPACK decoder, or are valid until
// the next header block.
type field struct {
	name, value []byte
	kind        kind
	bad         bool // the value has a byte that is not allowed
}

// fieldOverhead is the size of a field in RFC 7541, beyond its name and value, in bytes.
const fieldOverhead = 32

func (f *field) size() int { return len(f.name) + len(f.value) + fieldOverhead }

func kindOf(name []byte) kind {
	switch string(name) {
	case ":method":
		return kindMethod
	case ":scheme":
		return kindScheme
	case ":path":
		return kindPath
	case ":authority":
		return kindAuthority
	case "host":
		return kindHost
	case "content-type":
		return kindContentType
	case "content-length":
		return kindContentLength
	case "grpc-timeout":
		return kindTimeout
	case "grpc-encoding":
		return kindEncoding
	case "grpc-message-type", "grpc-message", "grpc-status":
		return kindReserved
	case "te":
		return kindTE
	case ExactHeader:
		return kindExact
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return kindConnection
	}
	switch {
	case len(name) > 0 && name[0] == ':':
		return kindPseudo
	case !validName(name):
		return kindInvalid
	case bytes.HasSuffix(name, []byte("-bin")):
		return kindBinary
	}
	return kindOther
}

// validName reports whether name is a token without upper case, RFC 9113 section 8.2.1.
func validName(name []byte) bool {
	for _, b := range name {
		if b >= 'A' && b <= 'Z' || !httpguts.IsTokenRune(rune(b)) {
			return false
		}
	}
	return len(name) > 0
}

func validValue(value []byte) bool {
	for _, b := range value {
		if b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}
