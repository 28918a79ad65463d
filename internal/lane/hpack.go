package lane

import (
	"errors"

	"golang.org/x/net/http2/hpack"
)

// Errors of a header block. Each one ends the connection, because the table of the decoder is
// unknown afterwards.
var (
	errIndex     = errors.New("HPACK: an index is not in the tables")
	errInteger   = errors.New("HPACK: an integer is cut off or too large")
	errText      = errors.New("HPACK: a string is cut off or malformed")
	errTableSize = errors.New("HPACK: a table size update is too large, or behind a field")
)

// maxTable bounds the dynamic table of a connection, in bytes: the value of RFC 9113 without
// SETTINGS_HEADER_TABLE_SIZE.
const maxTable = 4096

const staticFields = 61

type tables struct {
	static  [staticFields + 1]field // from 1 on
	huffman huffman
}

func newTables() *tables {
	t := new(tables)
	t.huffman.build()
	decoder := hpack.NewDecoder(0, nil)
	for i := 1; i <= staticFields; i++ {
		fields, err := decoder.DecodeFull([]byte{0x80 | byte(i)})
		if err == nil && len(fields) == 1 {
			t.static[i] = field{name: []byte(fields[0].Name), value: []byte(fields[0].Value)}
			t.static[i].kind = kindOf(t.static[i].name)
		}
	}
	return t
}

type fields struct {
	list []field
	text []byte // of decoded strings
	left int    // bytes of the header list that are still allowed
	over bool   // the header list was too large: list is not complete
}

func (to *fields) reset(limit int) {
	to.list, to.text, to.left, to.over = to.list[:0], to.text[:0], limit, false
}

func (to *fields) add(f *field) {
	if to.left -= f.size(); to.left < 0 {
		to.over = true
		return
	}
	to.list = append(to.list, *f)
}

// decoder decodes the header blocks of one connection, RFC 7541. The dynamic table keeps the
// meaning of each name.
type decoder struct {
	tables  *tables
	dynamic []field // the oldest first; from first on
	first   int
	size    int    // of dynamic, in bytes
	bound   int    // of size
	changes uint64 // of the dynamic table so far
}

// decode appends the fields of a block to to. All strings of literal fields are valid as long as
// block and to.
func (d *decoder) decode(block []byte, to *fields) error {
	begun := false // a field was there
	for len(block) > 0 {
		var err error
		switch b := block[0]; {
		case b&0x80 != 0: // indexed
			var index uint64
			if index, block, err = integer(block, 7); err != nil {
				return err
			}
			f := d.at(index)
			if f == nil {
				return errIndex
			}
			to.add(f)
		case b&0xe0 == 0x20:
			if block, err = d.resize(block, begun); err != nil {
				return err
			}
			continue
		default:
			if block, err = d.literal(block, to); err != nil {
				return err
			}
		}
		begun = true
	}
	return nil
}

func (d *decoder) literal(block []byte, to *fields) (rest []byte, err error) {
	indexing := block[0]&0xc0 == 0x40
	prefix := 4
	if indexing {
		prefix = 6
	}
	index, block, err := integer(block, prefix)
	if err != nil {
		return nil, err
	}
	var f field
	if index > 0 {
		named := d.at(index)
		if named == nil {
			return nil, errIndex
		}
		f.name, f.kind = named.name, named.kind
	} else {
		if f.name, block, err = d.string(block, to); err != nil {
			return nil, err
		}
		f.kind = kindOf(f.name)
	}
	if f.value, block, err = d.string(block, to); err != nil {
		return nil, err
	}
	f.bad = !validValue(f.value)
	if indexing {
		d.insert(&f, index == 0 || index > staticFields)
	}
	to.add(&f)
	return block, nil
}

// resize reads a dynamic table size update, which must come before all fields of a block.
func (d *decoder) resize(block []byte, begun bool) (rest []byte, err error) {
	size, rest, err := integer(block, 5)
	if err != nil {
		return nil, err
	}
	if begun || size > maxTable {
		return nil, errTableSize
	}
	d.bound = int(size)
	d.changes++
	d.evict(0)
	return rest, nil
}

func (d *decoder) at(index uint64) *field {
	if index <= staticFields {
		if index == 0 {
			return nil
		}
		return &d.tables.static[index]
	}
	if index -= staticFields; index <= uint64(len(d.dynamic)-d.first) {
		return &d.dynamic[len(d.dynamic)-int(index)]
	}
	return nil
}

// insert adds a copy of f to the dynamic table. Where named is set, the name is copied too: all but
// names of the static table. A name that is a part of another entry would keep all bytes of that
// entry. f then has the bytes of the copy.
func (d *decoder) insert(f *field, named bool) {
	d.changes++
	size := f.size()
	if size > d.bound {
		d.evict(d.bound) // all of them
		return
	}
	d.evict(size)
	if named {
		copied := append(append(make([]byte, 0, len(f.name)+len(f.value)), f.name...), f.value...)
		f.name, f.value = copied[:len(f.name):len(f.name)], copied[len(f.name):]
	} else {
		f.value = append([]byte(nil), f.value...)
	}
	if len(d.dynamic) == cap(d.dynamic) && d.first > 0 {
		kept := copy(d.dynamic, d.dynamic[d.first:])
		clear(d.dynamic[kept:])
		d.dynamic, d.first = d.dynamic[:kept], 0
	}
	d.dynamic = append(d.dynamic, *f)
	d.size += size
}

// evict drops the oldest fields until there is room for so many bytes.
func (d *decoder) evict(room int) {
	for d.size > d.bound-room {
		oldest := &d.dynamic[d.first]
		d.size -= oldest.size()
		*oldest = field{}
		d.first++
	}
}

// string reads a string: raw bytes of the block, or decoded bytes in to.text.
func (d *decoder) string(block []byte, to *fields) (text, rest []byte, err error) {
	if len(block) == 0 {
		return nil, nil, errText
	}
	coded := block[0]&0x80 != 0
	length, block, err := integer(block, 7)
	if err != nil {
		return nil, nil, err
	}
	if length > uint64(len(block)) {
		return nil, nil, errText
	}
	text, rest = block[:length:length], block[length:]
	if coded {
		begin, ok := len(to.text), false
		if to.text, ok = d.tables.huffman.decode(to.text, text); !ok {
			return nil, nil, errText
		}
		text = to.text[begin:len(to.text):len(to.text)]
	}
	return text, rest, nil
}

// integer reads an integer with a prefix of so many bits, RFC 7541 section 5.1.
func integer(block []byte, prefix int) (value uint64, rest []byte, err error) {
	most := byte(1)<<prefix - 1
	value, rest = uint64(block[0]&most), block[1:]
	if value < uint64(most) {
		return value, rest, nil
	}
	for shift := 0; shift < 63; shift += 7 {
		if len(rest) == 0 {
			break
		}
		b := rest[0]
		rest = rest[1:]
		value += uint64(b&0x7f) << shift
		if b&0x80 == 0 {
			return value, rest, nil
		}
	}
	return 0, nil, errInteger
}
