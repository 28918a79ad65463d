package descriptors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// meaning identifies all that a node means, except its place among wildcards: two nodes with the same meaning decide alike.
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

// appendMeaning appends all exported fields except ID, File and Line. Two rules have the same bytes only if these fields are equal.
func (r *Rule) appendMeaning(dst []byte) []byte {
	dst = appendSized(dst, r.Domain)
	dst = appendSized(dst, r.Path)
	dst = appendSized(dst, r.Name)
	dst = binary.AppendUvarint(dst, uint64(len(r.Replaces)))
	for _, name := range r.Replaces {
		dst = appendSized(dst, name)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Limits)))
	for i := range r.Limits {
		dst = r.Limits[i].appendMeaning(dst)
	}
	dst = appendFlags(dst, r.Unlimited, r.Shadow, r.Quota, r.DetailedMetric, r.Metadata != nil)
	if r.Metadata != nil {
		metadata, err := json.Marshal(r.Metadata)
		if err != nil { // a document has no value that JSON lacks
			metadata = []byte(err.Error())
		}
		dst = appendSized(dst, string(metadata))
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Levels)))
	for _, l := range r.Levels {
		dst = appendSized(dst, l.Key)
		dst = appendSized(dst, l.Value)
		dst = appendFlags(dst, l.ShareThreshold, l.ValueToMetric)
	}
	return dst
}

func (l *Limit) appendMeaning(dst []byte) []byte {
	dst = appendSized(dst, l.Name)
	dst = appendFlags(dst, l.CountRejected)
	for _, n := range [...]uint64{
		uint64(l.Algorithm), uint64(l.Requests), uint64(l.Period), uint64(l.Burst),
		uint64(l.OnStoreError), uint64(l.Unit), uint64(l.Multiplier),
	} {
		dst = binary.AppendUvarint(dst, n)
	}
	return dst
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
