package drive

import (
	"bytes"
	"fmt"

	"golang.org/x/net/http2/hpack"
)

// blocks reads the header blocks of answers. The blocks of a server repeat: one that changes no
// table means the same again, as long as none in between changes the table.
type blocks struct {
	decoder *hpack.Decoder
	read    *string // grpc-status of the block that is decoded
	known   []known
}

type known struct {
	block  []byte
	status string
}

// knownMost is the number of blocks that are remembered. Servers have two: headers and trailers.
const knownMost = 4

func newBlocks() blocks {
	b := blocks{read: new(string)}
	b.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			*b.read = f.Value
		}
	})
	return b
}

// status returns the grpc-status of a block, "" without one.
func (b *blocks) status(block []byte) (string, error) {
	for i := range b.known {
		if bytes.Equal(b.known[i].block, block) {
			return b.known[i].status, nil
		}
	}
	*b.read = ""
	_, err := b.decoder.Write(block)
	if err == nil {
		err = b.decoder.Close()
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("the headers of an answer: %w", err)
	case changesTable(block):
		b.known = b.known[:0]
	case len(b.known) < knownMost:
		b.known = append(b.known, known{bytes.Clone(block), *b.read})
	}
	return *b.read, nil
}

// changesTable reports whether a block may change the dynamic table of its connection, RFC 7541
// section 6. Without Huffman codes and long numbers the answer is exact, else it is true.
func changesTable(block []byte) bool {
	short := func(most byte) bool { // takes a number of one byte
		ok := len(block) > 0 && block[0]&most != most
		if ok {
			block = block[1:]
		}
		return ok
	}
	text := func() bool {
		if len(block) == 0 || block[0] >= 0x7f || len(block) <= int(block[0]) {
			return false
		}
		block = block[1+block[0]:]
		return true
	}
	for len(block) > 0 {
		switch first := block[0]; {
		case first >= 0x80: // an indexed field
			if !short(0x7f) {
				return true
			}
		case first >= 0x20: // a new field in the table, or another size of the table
			return true
		default:
			named := first&0x0f == 0
			if !short(0x0f) || named && !text() || !text() {
				return true
			}
		}
	}
	return false
}
