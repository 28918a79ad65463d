package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// class is a kind of limit. Keys of all classes get requests in turn.
type class uint8

const (
	countExact   class = iota // hits of a year: one to three a request, on_store_error: deny
	countLeased               // the same with leases
	secondExact               // windows of a second, on_store_error: local
	secondLeased              // the same with leases
	bucketExact               // a token bucket, on_store_error: local
	bucketLeased              // the same with leases
	classes
)

// counts reports whether a class has a limit that a key reaches once.
func (c class) counts() bool { return c <= countLeased }

// leased reports whether a class has leases.
func (c class) leased() bool { return c%2 == 1 }

// String returns the name of a class in rules and reports.
func (c class) String() string {
	return [...]string{"count_exact", "count_leased", "second_exact", "second_leased", "bucket_exact", "bucket_leased"}[c]
}

// op is a request and its end, by the clock of the client.
type op struct {
	sent, received int64 // Unix nanoseconds
	key            int32 // the remainder by classes is its class
	hits           uint8 // 1 to 3
	sidecar        uint8
	result         drive.Result
}

// class returns the class of the key.
func (o *op) class() class { return class(o.key % int32(classes)) }

// A fault is when something happened to one sidecar, or to all.
type fault struct {
	From    int64 `json:"from"` // Unix nanoseconds
	Back    int64 `json:"back"` // the end begins: until then the fault lasts for certain
	To      int64 `json:"to"`
	Sidecar int   `json:"sidecar"` // -1: all
	// Kept is the instant up to which the next primary had all hits that were answered. Hits after it
	// may be lost, up to Back. 0: nothing is lost.
	Kept int64 `json:"kept"`
}

// A scene is a run of a fleet with one kind of fault.
type scene struct {
	Name     string    `json:"name"`
	Sidecars int       `json:"sidecars"`
	Limits   [6]uint32 `json:"limits"` // of each class: requests of its period
	Faults   []fault   `json:"faults"`
	// Slow is the time of an answer from which on its sidecar may have decided without Redis. On a
	// busy machine that happens without a fault.
	Slow time.Duration `json:"slow"`
	Ops  int           `json:"operations"`
	ops  []op
}

// limit returns the limit of a class.
func (s *scene) limit(c class) algorithms.Limit {
	l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: s.Limits[c], Period: time.Second}
	switch c { //nolint:exhaustive // the others have windows of a second
	case countExact, countLeased:
		l.Period = 365 * 24 * time.Hour
	case bucketExact, bucketLeased:
		l.Algorithm, l.Burst = algorithms.TokenBucket, s.Limits[c]
	}
	return l
}

// magic begins a file of histories.
const magic = "weir histories 1\n"

// maxText is the largest description of a scene, in bytes.
const maxText = 1 << 20

// mostLimit is the largest limit of a class.
const mostLimit = 1 << 20

// write appends a scene to a file: the length of its description, the description as JSON, and the
// operations in the order of their requests.
func (s *scene) write(w io.Writer) error {
	s.Ops = len(s.ops)
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	out := binary.AppendUvarint(nil, uint64(len(text)))
	out = append(out, text...)
	last := int64(0)
	for i := range s.ops {
		o := &s.ops[i]
		out = binary.AppendVarint(out, o.sent-last)
		out = binary.AppendUvarint(out, uint64(max(0, o.received-o.sent)))
		out = binary.AppendUvarint(out, uint64(o.key))
		out = append(out, o.hits|o.sidecar<<2|byte(o.result)<<5)
		if last = o.sent; len(out) > 1<<16 {
			if _, err := w.Write(out); err != nil {
				return err
			}
			out = out[:0]
		}
	}
	_, err = w.Write(out)
	return err
}

// readScene reads the next scene. The error at the end of a file is io.EOF.
func readScene(r *bufio.Reader) (*scene, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return nil, err
	}
	if n > maxText {
		return nil, fmt.Errorf("a scene is described by %d bytes; the most is %d", n, maxText)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("the description of a scene: %w", err)
	}
	s := &scene{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("the description of a scene: %w", err)
	}
	if s.Sidecars < 1 || s.Sidecars > 7 || s.Ops < 0 {
		return nil, fmt.Errorf("scene %q: %d sidecars and %d operations; want 1 to 7, and not fewer than 0", s.Name, s.Sidecars, s.Ops)
	}
	for c := range classes {
		if l := s.Limits[c]; l < 2 || l > mostLimit {
			return nil, fmt.Errorf("scene %q: the limit of %v is %d; want 2 to %d", s.Name, c, l, mostLimit)
		}
	}
	last := int64(0)
	for i := range s.Ops {
		o, err := readOp(r, last)
		if err != nil {
			return nil, fmt.Errorf("scene %q: operation %d of %d: %w", s.Name, i, s.Ops, err)
		}
		last = o.sent
		s.ops = append(s.ops, o)
	}
	return s, nil
}

// readOp reads an operation, which was sent after the last one.
func readOp(r *bufio.Reader, last int64) (o op, err error) {
	after, err1 := binary.ReadVarint(r)
	took, err2 := binary.ReadUvarint(r)
	key, err3 := binary.ReadUvarint(r)
	rest, err4 := r.ReadByte()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return o, errors.Join(io.ErrUnexpectedEOF, err)
	}
	sent := last + after
	o = op{sent: sent, received: sent + int64(took), key: int32(key), hits: rest & 3, sidecar: rest >> 2 & 7, result: drive.Result(rest >> 5)}
	if key > math.MaxInt32 || took > math.MaxInt64/2 || o.hits == 0 || o.result == drive.Open || o.result > drive.Unreached {
		return o, fmt.Errorf("key %d, %d ns, %d hits and the result %d are not possible", key, took, o.hits, o.result)
	}
	return o, nil
}
