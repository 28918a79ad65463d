package descriptors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// meaning identifies all that a node means, except its place among wildcards: two nodes with the
// same meaning decide alike.
type meaning [sha256.Size]byte

// digest computes the meaning of every node and the hash of all.
func (r *Rules) digest() {
	r.meanings = make([]meaning, len(r.all))
	ranked := make([]meaning, len(r.all))
	var text []byte
	for i, rule := range r.all {
		text = rule.appendMeaning(text[:0])
		r.meanings[i] = sha256.Sum256(text)
		ranked[i] = r.meanings[i]
		if rule.rank > 0 {
			ranked[i] = sha256.Sum256(binary.AppendUvarint(text, uint64(rule.rank)))
		}
	}
	slices.SortFunc(ranked, func(a, b meaning) int { return bytes.Compare(a[:], b[:]) })
	hash := sha256.New()
	for _, m := range ranked {
		_, _ = hash.Write(m[:]) // a hash never fails
	}
	for _, d := range r.Domains() { // a domain without rules decides overrides, too
		_, _ = hash.Write(appendSized(text[:0], d.Name))
	}
	r.hash = hex.EncodeToString(hash.Sum(nil)[:8])
}

// appendSized appends the length of a text, then the text.
func appendSized(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// appendFlags appends a byte for each flag.
func appendFlags(dst []byte, flags ...bool) []byte {
	for _, is := range flags {
		if is {
			dst = append(dst, 1)
		} else {
			dst = append(dst, 0)
		}
	}
	return dst
}
