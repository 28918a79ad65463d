package records

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/internal/metrics"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Bounds of Options.MaxBytes.
const (
	MinMaxBytes     = 8 << 20
	DefaultMaxBytes = 1 << 30
)

// Options configures NewRecorder.
type Options struct {
	Dir        string   // made with mode 0700 if it is missing; for one process at a time
	MaxBytes   int64    // of all files together; at the bound the oldest is removed. 0 means DefaultMaxBytes; else at least MinMaxBytes
	HashValues []string // keys of entries whose values are hashed
	Salt       []byte   // of the hashes, at least MinSalt bytes; nil: random bytes, new ones for each Recorder
	Logger     *slog.Logger

	// Writable lets NewRecorder fail if the directory cannot be written. Without it NewRecorder logs
	// the error, and Run tries again.
	Writable bool
}

// Recorder writes requests to files. All methods are safe for concurrent use.
//
// Observe copies a request to a buffer of a fixed size, and never waits for the disk. If the disk
// is slow or full, requests are dropped and counted. Files are as [Append] writes lines, compressed
// with zstd. Each second the requests so far are handed to the operating system, so that a killed
// process loses the last second at most. A crash of the machine may lose more.
type Recorder struct {
	out    *output // used by Run
	hasher *hasher // used by Run
	lines  []byte  // used by Run

	wake chan struct{} // the buffer is half full

	mu      sync.Mutex // guards filling
	filling []byte
	spare   []byte // used by Run; swapped with filling

	dropped atomic.Uint64 // for want of room in the buffer, or too long for a line
	failed  atomic.Uint64 // requests that ended with an error
}

var _ limiter.Observer = (*Recorder)(nil)

// bufferBytes is the size of each of the two buffers. About 50000 requests fit.
const bufferBytes = 4 << 20

// NewRecorder locks the directory. The errors are an option out of bounds, another process that
// records there, and with Options.Writable a directory that cannot be written. Without
// Options.Writable such a directory goes to the log, and Run tries again.
func NewRecorder(ctx context.Context, o Options) (*Recorder, error) {
	return newRecorder(ctx, o, create)
}

func newRecorder(ctx context.Context, o Options, create func(path string) (io.WriteCloser, error)) (*Recorder, error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxBytes < MinMaxBytes {
		return nil, fmt.Errorf("max bytes: %d: must be at least %d", o.MaxBytes, MinMaxBytes)
	}
	if o.Salt != nil && len(o.Salt) < MinSalt {
		return nil, fmt.Errorf("salt: has %d bytes: must have at least %d", len(o.Salt), MinSalt)
	}
	r := &Recorder{
		out:     &output{options: o, create: create, dir: lockfile.NewDirectory(o.Dir, "requests")},
		hasher:  newHasher(o.HashValues, o.Salt),
		wake:    make(chan struct{}, 1),
		filling: make([]byte, 0, bufferBytes),
		spare:   make([]byte, 0, bufferBytes),
	}
	_, err := r.out.dir.Wait(ctx)
	if errors.Is(err, lockfile.ErrHeld) {
		return nil, fmt.Errorf("%s: another process records there: %w", o.Dir, err)
	}
	if err == nil && o.Writable {
		err = r.out.try()
	}
	switch {
	case err != nil && o.Writable:
		r.out.dir.Close()
		return nil, fmt.Errorf("%s: cannot record there: %w", o.Dir, err)
	case err != nil:
		r.out.fail(err, 0)
	}
	return r, nil
}

// Observe implements [limiter.Observer]. A request that ended with an error is counted, and not
// recorded.
func (r *Recorder) Observe(o limiter.Observed) {
	if o.Err != nil {
		r.failed.Add(1)
		return
	}
	answer := Passed
	if o.Verdict.OverLimit {
		answer = OverLimit
	}
	at, size := algorithms.Instant(o.Begun.UnixNano()), packedSize(o.Request)
	r.mu.Lock()
	before := len(r.filling)
	if before+size > cap(r.filling) {
		r.mu.Unlock()
		r.dropped.Add(1)
		return
	}
	r.filling = pack(r.filling, at, answer, o.Request)
	after := len(r.filling)
	r.mu.Unlock()
	if before < bufferBytes/2 && after >= bufferBytes/2 {
		select {
		case r.wake <- struct{}{}:
		default: // Run is awake
		}
	}
}

// Run writes the requests of Observe until ctx ends. Then Run writes the rest, and gives the
// directory to other processes. The result is nil. Run must be called once.
func (r *Recorder) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			r.write()
			r.out.close()
			return nil
		case <-r.wake:
			r.write()
		case <-tick.C:
			r.write()
			r.out.flush()
		}
	}
}

func (r *Recorder) write() {
	r.mu.Lock()
	r.filling, r.spare = r.spare[:0], r.filling
	r.mu.Unlock()
	if len(r.spare) == 0 {
		return
	}
	u := unpacker{r.spare} // Observe does not change it before the next swap
	var record Record
	for len(u.rest) > 0 {
		r.lines = r.lines[:0]
		n := 0
		for len(u.rest) > 0 && len(r.lines) < chunkBytes {
			u.next(&record)
			r.hasher.request(&record.Request)
			before := len(r.lines)
			r.lines = Append(r.lines, &record)
			if len(r.lines)-before > maxLine { // no reader would take the file
				r.lines = r.lines[:before]
				r.dropped.Add(1)
				continue
			}
			n++
		}
		r.out.write(r.lines, n)
	}
}

// Stats is the metrics of a Recorder at one moment.
type Stats struct {
	Recorded uint64 // requests that were handed to the operating system
	Dropped  uint64 // for want of room in the buffer, as the disk was too slow, or too long for a line
	Lost     uint64 // for a failure of the disk
	Failed   uint64 // requests that ended with an error
	Failures uint64 // of the disk
	Bytes    uint64 // written, compressed
	Removed  uint64 // files that were removed for the bound
}

// Stats returns the metrics.
func (r *Recorder) Stats() Stats {
	s := r.out.stats()
	s.Dropped, s.Failed = r.dropped.Load(), r.failed.Load()
	return s
}

// Flags of a packed descriptor.
const (
	flagProbe = 1 << iota
	flagRefund
	flagOverride
)

// packedSize returns the most bytes that a packed request takes.
func packedSize(r *limiter.Request) int {
	size := 8 + 1 + 4*binary.MaxVarintLen32 + len(r.Domain)
	for i := range r.Descriptors {
		size += 1 + binary.MaxVarintLen64 + 4*binary.MaxVarintLen32
		for _, e := range r.Descriptors[i].Entries {
			size += 2*binary.MaxVarintLen32 + len(e.Key) + len(e.Value)
		}
	}
	return size
}

// pack appends a copy of a request, which costs the goroutine that answers less than JSON.
func pack(dst []byte, at algorithms.Instant, answer Answer, r *limiter.Request) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(at))
	dst = append(dst, byte(answer))
	dst = binary.AppendUvarint(dst, uint64(r.Hits))
	dst = packText(dst, r.Domain)
	dst = binary.AppendUvarint(dst, uint64(len(r.Descriptors)))
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		flags := byte(0)
		if d.Probe {
			flags |= flagProbe
		}
		if d.Refund {
			flags |= flagRefund
		}
		if d.Override != nil {
			flags |= flagOverride
		}
		dst = append(dst, flags)
		dst = binary.AppendUvarint(dst, d.Hits)
		if o := d.Override; o != nil {
			dst = binary.AppendUvarint(dst, uint64(o.Requests))
			dst = binary.AppendUvarint(dst, uint64(uint32(o.Unit)))
			dst = binary.AppendUvarint(dst, uint64(o.Multiplier))
		}
		dst = binary.AppendUvarint(dst, uint64(len(d.Entries)))
		for _, e := range d.Entries {
			dst = packText(packText(dst, e.Key), e.Value)
		}
	}
	return dst
}

func packText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// unpacker reads packed requests. The texts are parts of rest, which must not change meanwhile.
type unpacker struct{ rest []byte }

// next reads a request into r, which is used again.
func (u *unpacker) next(r *Record) {
	r.Request.Reset()
	r.At = algorithms.Instant(binary.LittleEndian.Uint64(u.rest))
	r.Answer = Answer(u.rest[8])
	u.rest = u.rest[9:]
	r.Request.Hits = uint32(u.number())
	r.Request.Domain = u.text()
	for range u.number() {
		d := r.Request.Add()
		flags := u.rest[0]
		u.rest = u.rest[1:]
		d.Hits, d.Probe, d.Refund = u.number(), flags&flagProbe != 0, flags&flagRefund != 0
		if flags&flagOverride != 0 {
			d.Override = &limiter.Override{Requests: uint32(u.number()), Unit: descriptors.Unit(u.number()), Multiplier: uint32(u.number())}
		}
		for range u.number() {
			d.Entries = append(d.Entries, limiter.Entry{Key: u.text(), Value: u.text()})
		}
	}
}

func (u *unpacker) number() uint64 {
	n, size := binary.Uvarint(u.rest)
	u.rest = u.rest[size:]
	return n
}

func (u *unpacker) text() string {
	n := int(u.number())
	text := unsafe.String(unsafe.SliceData(u.rest), n)
	u.rest = u.rest[n:]
	return text
}

// Metrics returns the collector of the metrics weir_record_*.
func (r *Recorder) Metrics() prometheus.Collector {
	return metrics.NewCollector("weir_record_", nil, r.collect,
		metrics.New("requests_total", "Requests that were answered while they are recorded.", "result"),
		metrics.New("bytes_total", "Bytes of records that were written."),
		metrics.New("failures_total", "Failures to write records."),
		metrics.New("removed_files_total", "Files of records that were removed for newer ones."),
	)
}

func (r *Recorder) collect(to metrics.Scrape) {
	s := r.Stats()
	to.Counter("requests_total", s.Recorded, "recorded")
	to.Counter("requests_total", s.Dropped, "dropped")
	to.Counter("requests_total", s.Lost, "lost")
	to.Counter("requests_total", s.Failed, "failed")
	to.Counter("bytes_total", s.Bytes)
	to.Counter("failures_total", s.Failures)
	to.Counter("removed_files_total", s.Removed)
}
