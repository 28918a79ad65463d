package memstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// A snapshot is the states of a store in bytes, for a store in a later process. All numbers are
// little-endian.
//
//	file     magic, version (4 bytes), sections
//	section  kind (1 byte), length of the content (4 bytes), content, checksum (4 bytes)
//	head     identity (8 random bytes), hash (1 byte), key of the hash (16 bytes), time of the
//	         snapshot (8 bytes, Unix ns),
//	         about how many keys follow (8 bytes)
//	keys     instant of the states (8 bytes, Unix ns), records
//	lines    instant of the holders (8 bytes, Unix ns), records of keys of concurrency
//	holders  instant (8 bytes, Unix ns), records of holders of rate limits
//	returns  instant (8 bytes, Unix ns), records of holders whose hits come back; none without such
//	beside   length of a record of another store (uvarint), the record, and so on
//	end      number of records of this store (8 bytes)
//
// The first section is the head, the last one is the end, and nothing follows. A checksum is
// CRC-32C of the identity, the section's number, kind, length and content. So no section can be
// lost, moved, or taken from another snapshot.
//
// A record is the digest (13 bytes), the denied hits (1 byte), the number of the limit in the
// section, and the state. The first record of a limit holds the limit, too: algorithm (1 byte),
// requests, period and burst. A state is the time from the last charge to the section's instant,
// and its two words. The state of sliding_window_log begins with twice the number of its entries,
// plus one if the next record has more entries. The entries follow: time since the entry before,
// and hits. Numbers without a size are varints; times of a state, and of a first entry, are signed
// ones.
//
// The record of a key of concurrency has the number of its holders, or of some of these, in place
// of the state. The record of a holder of a rate limit begins with the tag of its state and its
// kind (8 bytes). If its hits come back, it begins with the digest. A holder is the name (16
// bytes), hits, the age of the begin, and the time until the holder runs out. Both times count from
// the section's instant, as signed varints. Version 1 has no holders.
const (
	snapshotMagic   = "weir\r\n\x1a\x00" // no text, and damaged by a transfer as text
	snapshotVersion = 2
	snapshotOldest  = 1 // that Load reads

	sectionHead    = 1
	sectionKeys    = 2
	sectionEnd     = 3
	sectionLines   = 4
	sectionHolders = 5
	sectionBeside  = 6
	sectionReturns = 7

	hashSip = 1 // SipHash-2-4 with 128 bits

	headSize   = 8 + 1 + 16 + 8 + 8
	digestSize = 8 + 5

	maxSection = 1 << 20  // bytes of content
	fullEnough = 1 << 19  // bytes of content after which a section ends
	maxRecord  = 16 << 10 // entries of a log in one record
	maxLine    = 8 << 10  // holders of a key in one record
)

// Bounds of the records of another store in a snapshot.
const (
	MaxBeside       = 16 << 20       // bytes of all together
	MaxBesideRecord = fullEnough / 2 // bytes of one
	maxBesides      = 1 << 18
)

// Errors of Save and Load.
var (
	ErrNotSavable = errors.New("the store was made without Options.Savable")
	ErrInUse      = errors.New("the store has keys already")
	ErrSnapshot   = errors.New("not a whole snapshot") // wrapped: the text says the damage
	ErrVersion    = errors.New("a snapshot of another version of this program")
)

// Saved is the result of Save.
type Saved struct {
	Keys    int // in the snapshot
	Holders int // the same
	Beside  int // records of another store, the same
}

// Loaded is the result of Load.
type Loaded struct {
	Time   time.Time // of the snapshot
	Keys   int       // read and remembered
	Idle   int       // read, and idle by now: no decision needs them
	NoRoom int       // read, and forgotten: the store has less room than the store that was saved

	Holders int // read and remembered

	Beside [][]byte // records of another store
}

// hashKey is the secret key of digests in a store that can be saved.
type hashKey [2]uint64

func newHashKey() hashKey {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hashKey{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

// checksum is the checksum of one section after another.
type checksum struct {
	table    *crc32.Table
	identity [8]byte
	number   uint32 // of the next section
}

func newChecksum() checksum { return checksum{table: crc32.MakeTable(crc32.Castagnoli)} }

// next returns the checksum of the next section.
func (c *checksum) next(kind byte, content []byte) uint32 {
	var head [17]byte
	copy(head[:], c.identity[:])
	binary.LittleEndian.PutUint32(head[8:], c.number)
	head[12] = kind
	binary.LittleEndian.PutUint32(head[13:], uint32(len(content)))
	c.number++
	return crc32.Update(crc32.Checksum(head[:], c.table), c.table, content)
}

// appendLimit appends a limit to a record.
func appendLimit(to []byte, l *algorithms.Limit) []byte {
	to = append(to, byte(l.Algorithm))
	to = binary.AppendUvarint(to, l.PerPeriod())
	to = binary.AppendUvarint(to, uint64(l.Period))
	return binary.AppendUvarint(to, uint64(l.Burst))
}

// fields reads the fields of a section, and keeps the first failure.
type fields struct {
	rest   []byte
	failed bool
}

func (f *fields) bytes(n int) []byte {
	if len(f.rest) < n {
		f.failed, f.rest = true, nil
		return make([]byte, n)
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) byte() byte     { return f.bytes(1)[0] }
func (f *fields) uint64() uint64 { return binary.LittleEndian.Uint64(f.bytes(8)) }

// skip goes on behind a number of n bytes; n <= 0 is a failure, and the number is 0.
func (f *fields) skip(n int) {
	if n <= 0 {
		f.failed, f.rest = true, nil
		return
	}
	f.rest = f.rest[n:]
}

func (f *fields) uvarint() uint64 {
	x, n := binary.Uvarint(f.rest)
	f.skip(n)
	return x
}

func (f *fields) varint() int64 {
	x, n := binary.Varint(f.rest)
	f.skip(n)
	return x
}

// limit reads a limit; an invalid limit is a failure.
func (f *fields) limit() algorithms.Limit {
	algorithm, requests, period, burst := f.byte(), f.uvarint(), f.uvarint(), f.uvarint()
	l := algorithms.Limit{Algorithm: algorithms.Algorithm(algorithm), Period: time.Duration(period), Extra: algorithms.Extra{Burst: uint32(burst)}}
	l.SetPerPeriod(requests)
	if l.PerPeriod() != requests || uint64(l.Burst) != burst || l.Validate() != nil {
		f.failed = true
	}
	return l
}
