package records

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"hash"
	"slices"

	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/pkg/limiter"
)

// MinSalt is the least length of a salt, in bytes.
const MinSalt = 16

// hashed is the bytes of a hash: two of a billion values are the same with 1e18/2^97, about 6e-12.
const hashed = 12

// hasher replaces the values of some keys by hashes. A hash is the first 96 bits of HMAC-SHA-256 of
// the value, under the salt, in base64url: 16 characters. Equal values have equal hashes. Without
// the salt nobody can try out values against a hash.
type hasher struct {
	keys []string
	mac  hash.Hash
	sum  []byte
}

// newHasher returns a hasher; nil without keys. Without a salt it takes 32 random bytes.
func newHasher(keys []string, salt []byte) *hasher {
	if len(keys) == 0 {
		return nil
	}
	if len(salt) == 0 {
		salt = make([]byte, 32)
		_, _ = rand.Read(salt) // which never fails
	}
	return &hasher{keys: keys, mac: hmac.New(sha256.New, salt)}
}

func (h *hasher) request(r *limiter.Request) {
	if h == nil {
		return
	}
	for i := range r.Descriptors {
		for n := range r.Descriptors[i].Entries {
			if e := &r.Descriptors[i].Entries[n]; slices.Contains(h.keys, e.Key) {
				e.Value = h.hash(e.Value)
			}
		}
	}
}

func (h *hasher) hash(value string) string {
	h.mac.Reset()
	_, _ = h.mac.Write([]byte(value)) // which never fails
	h.sum = h.mac.Sum(h.sum[:0])
	return base64.RawURLEncoding.EncodeToString(h.sum[:hashed])
}

// ReadSalt reads the salt in a file, without line ends at its end.
func ReadSalt(path string) ([]byte, error) {
	data, err := regular.Read(path, 1<<20)
	if err != nil {
		return nil, err
	}
	if data = bytes.TrimRight(data, "\r\n"); len(data) < MinSalt {
		return nil, errors.New(path + ": is too short: must have at least 16 bytes, such as the output of `openssl rand -hex 32`")
	}
	return data, nil
}
