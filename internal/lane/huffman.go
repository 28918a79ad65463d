package lane

import (
	"bytes"
	"encoding/binary"
	"slices"

	"golang.org/x/net/http2/hpack"
)

// Codes of Huffman up to this length, in bits, are found in one step. Nearly all printable
// characters have such codes.
const shortBits = 10

// huffman decodes the code of RFC 7541, appendix B. The code is canonical: the codes of one length
// are successive numbers, in the order of their symbols.
type huffman struct {
	short [1 << shortBits]uint16 // by the next bits: symbol<<4 | length; 0: the code is longer

	// Of the longer codes of each length: the first code, the number of codes, and the position of
	// their symbols.
	first, count [31]uint32
	at           [31]int
	symbols      []byte
}

// build reads the code from golang.org/x/net/http2/hpack, which encodes each symbol.
func (h *huffman) build() {
	var lengths [256]int
	var codes [256]uint32
	for symbol := range 256 {
		text := string([]byte{byte(symbol)})
		lengths[symbol] = int(hpack.HuffmanEncodeLength(string(bytes.Repeat([]byte(text), 8)))) // of 8 symbols, in bytes
		var code uint32
		for i, b := range append(hpack.AppendHuffmanString(nil, text), 0, 0, 0)[:4] {
			code |= uint32(b) << (24 - 8*i)
		}
		codes[symbol] = code >> (32 - lengths[symbol])
	}
	for symbol, length := range lengths {
		if length > shortBits {
			continue
		}
		low := codes[symbol] << (shortBits - length)
		for i := range uint32(1) << (shortBits - length) {
			h.short[low+i] = uint16(symbol<<4 | length)
		}
	}
	for length := shortBits + 1; length <= 30; length++ {
		h.at[length] = len(h.symbols)
		for symbol, l := range lengths {
			if l != length {
				continue
			}
			if h.count[length] == 0 {
				h.first[length] = codes[symbol]
			}
			h.count[length]++
			h.symbols = append(h.symbols, byte(symbol))
		}
	}
}

// decode appends the decoded text to dst, and reports whether src is a sequence of codes with
// padding. The padding must be the beginning of EOS, and shorter than a byte.
func (h *huffman) decode(dst, src []byte) ([]byte, bool) {
	dst = slices.Grow(dst, len(src)*8/5) // no code has less than five bits
	var bits uint64                      // the next bits, from the highest one on
	have := 0                            // so many are complete
	for {
		if len(src) >= 8 { // bits beyond have are the same the next time
			bits |= binary.BigEndian.Uint64(src) >> have
			n := (63 - have) / 8
			src = src[n:]
			have += 8 * n
		} else {
			for ; have <= 56 && len(src) > 0; have += 8 {
				bits |= uint64(src[0]) << (56 - have)
				src = src[1:]
			}
		}
		for have >= shortBits {
			s := h.short[bits>>(64-shortBits)]
			if s == 0 {
				break
			}
			dst = append(dst, byte(s>>4))
			bits <<= s & 15
			have -= int(s & 15)
		}
		if have < 30 && len(src) > 0 {
			continue
		}
		symbol, length := h.next(bits)
		if length == 0 || length > have {
			break
		}
		dst = append(dst, symbol)
		bits <<= length
		have -= length
	}
	padding := uint64(1)<<have - 1
	return dst, have < 8 && bits>>(64-have) == padding
}

// next returns the first symbol with the length of its code; 0: there is no such code.
func (h *huffman) next(bits uint64) (symbol byte, length int) {
	if s := h.short[bits>>(64-shortBits)]; s != 0 {
		return byte(s >> 4), int(s & 15)
	}
	for length = shortBits + 1; length <= 30; length++ {
		if i := uint32(bits>>(64-length)) - h.first[length]; i < h.count[length] {
			return h.symbols[h.at[length]+int(i)], length
		}
	}
	return 0, 0
}
