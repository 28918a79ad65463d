package reload

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"

	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// tables is the tables that the rule files of one reading name. Each is read once, when a rule
// first needs it: all rules of a reading see the same lines, however often they are judged. Not
// safe for concurrent use.
type tables struct {
	bounds descriptors.Options  // MaxTableBytes holds for all tables together
	known  map[string]tableFile // by path
	before map[string]tableFile // of earlier readings: a table with the same bytes is not decoded again
	size   int                  // of known, in bytes
}

type tableFile struct {
	print string // see printOf
	size  int    // in bytes
	table *descriptors.Table
	err   error
}

var errChanges = errors.New("changes while it is read: a table should be written under another name, and then renamed")

func newTables(bounds descriptors.Options, before map[string]tableFile) *tables {
	return &tables{bounds: bounds, known: make(map[string]tableFile), before: before}
}

func (t *tables) of(file string) func(name string) (*descriptors.Table, error) {
	return func(name string) (*descriptors.Table, error) {
		path := descriptors.TablePath(file, name)
		f, ok := t.known[path]
		if !ok {
			f = t.read(path)
			t.known[path] = f
		}
		return f.table, f.err
	}
}

func (t *tables) read(path string) (f tableFile) {
	const most = 3
	var data []byte
	for range most {
		if data, f.err = t.bytes(path); !errors.Is(f.err, errChanges) {
			break
		}
	}
	if f.err != nil {
		f.print, f.err = printOf(path, t.bounds), FileError{File: path, Err: regular.Bare(f.err)}
		return f
	}
	t.size += len(data)
	sum := sha256.Sum256(data)
	f.print = hex.EncodeToString(sum[:])
	if was := t.before[path]; was.print == f.print {
		return was
	}
	f.size, f.table = len(data), descriptors.NewTable(path, data)
	return f
}

func (t *tables) bytes(path string) ([]byte, error) {
	file, info, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // nothing was written
	if text, tooLarge := t.bounds.TableTooLarge(int(info.Size()), t.size); tooLarge {
		return nil, errors.New(text)
	}
	data := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := data.ReadFrom(io.LimitReader(file, info.Size()+1)); err != nil {
		return nil, err
	}
	after, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if int64(data.Len()) != info.Size() || after.Size() != info.Size() || !after.ModTime().Equal(info.ModTime()) {
		return nil, errChanges
	}
	return data.Bytes(), nil
}

// printOf identifies the bytes of a table: their SHA-256 up to the bound and a byte, or the error.
func printOf(path string, bounds descriptors.Options) string {
	file, _, err := regular.Open(path)
	if err != nil {
		return regular.Bare(err).Error()
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	most := cmp.Or(bounds.MaxTableBytes, descriptors.DefaultMaxTableBytes)
	if _, err := io.Copy(sum, io.LimitReader(file, int64(most)+1)); err != nil {
		return regular.Bare(err).Error()
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// prints returns the texts that identify the tables as they are now, by path.
func prints(known map[string]tableFile, bounds descriptors.Options) map[string]string {
	all := make(map[string]string, len(known))
	for path := range known {
		all[path] = printOf(path, bounds)
	}
	return all
}

// prints returns the texts that identify the tables as they were read, by path.
func (t *tables) prints() map[string]string {
	all := make(map[string]string, len(t.known))
	for path, f := range t.known {
		all[path] = f.print
	}
	return all
}

type named struct {
	tables map[string]tableFile // of the last attempt
	cache  map[string]tableFile // of the last attempt and of the rules in force
}

// remember keeps the tables of an attempt, and of the rules in force, for the readings to come.
func (r *Reloader) remember(attempted, inForce *tables) {
	n := &named{tables: maps.Clone(attempted.known), cache: maps.Clone(attempted.known)}
	if inForce != nil {
		for path, f := range inForce.known {
			if last := n.cache[path].table; last == nil || last.Err() != nil {
				n.cache[path] = f
			}
		}
	}
	attempted.before = nil // which would keep the tables of all earlier readings
	r.named.Store(n)
}
