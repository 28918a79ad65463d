package descriptors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// rows is the lines of a table, findable by their values. There are no pointers to single lines, so
// that a collection of garbage costs little. The zero value is empty.
type rows struct {
	values []byte // of all lines, one after another
	all    []row  // in the order of the lines

	// slots are an open hash table with linear probing: the number of a row from 1, or 0. A third of
	// the slots is free. slot i of n is for hashes from i/n of the largest (Lemire, "Fast random
	// integer generation in an interval", 2019).
	slots []uint32
	seed  maphash.Seed // of this process: nobody can choose values that collide
}

// row is the numbers of a value.
type row struct {
	end      uint32 // of the value in rows.values; it begins where the row before ends
	line     uint32 // from 1
	requests uint32
	burst    uint32 // 0: as in the limit
	unit     uint8  // a Unit; UnitUnknown: the period is as in the limit
}

// shortestLine is the size of the shortest line: a value, a comma, a number and a line break.
const shortestLine = 4

// grow makes room for the lines of data.
func (r *rows) grow(data []byte) {
	lines := 0
	for line := range bytes.Lines(data) {
		if len(line) >= shortestLine-1 { // the last line may lack a line break
			lines++
		}
	}
	r.all = make([]row, 0, lines)
	r.values = make([]byte, 0, len(data))
}

// add adds a row, except for its end.
func (r *rows) add(value string, x row) {
	r.values = append(r.values, value...)
	x.end = uint32(len(r.values))
	r.all = append(r.all, x)
}

// value returns the value of row i.
func (r *rows) value(i int) []byte {
	begin := uint32(0)
	if i > 0 {
		begin = r.all[i-1].end
	}
	return r.values[begin:r.all[i].end]
}

// index makes the rows findable. index calls twice for each row whose value an earlier row has.
func (r *rows) index(twice func(again, first *row, value string)) {
	r.seed = maphash.MakeSeed()
	r.slots = make([]uint32, len(r.all)+len(r.all)/2+1)
	for i := range r.all {
		value := r.value(i)
		slot := r.slotOf(maphash.Bytes(r.seed, value))
		for r.slots[slot] != 0 && string(r.value(int(r.slots[slot]-1))) != string(value) {
			slot = r.after(slot)
		}
		if n := r.slots[slot]; n != 0 {
			twice(&r.all[i], &r.all[n-1], string(value))
			continue
		}
		r.slots[slot] = uint32(i + 1)
	}
}

// find returns the row of a value, or nil.
func (r *rows) find(value string) *row {
	if len(r.slots) == 0 {
		return nil
	}
	for slot := r.slotOf(maphash.String(r.seed, value)); r.slots[slot] != 0; slot = r.after(slot) {
		if i := int(r.slots[slot] - 1); string(r.value(i)) == value {
			return &r.all[i]
		}
	}
	return nil
}

// slotOf returns the slot at which the search for a hash begins.
func (r *rows) slotOf(hash uint64) int {
	slot, _ := bits.Mul64(hash, uint64(len(r.slots)))
	return int(slot)
}

// after returns the slot after another.
func (r *rows) after(slot int) int {
	if slot++; slot == len(r.slots) {
		return 0
	}
	return slot
}

// meaning identifies the values and their numbers. The meaning is the sum of the SHA-256 of the
// rows, so that their order has no effect.
func (r *rows) meaning() (sum meaning) {
	var text []byte
	for i := range r.all {
		x := &r.all[i]
		text = binary.AppendUvarint(text[:0], uint64(x.requests))
		text = binary.AppendUvarint(text, uint64(x.burst))
		text = append(append(text, x.unit), r.value(i)...)
		one := sha256.Sum256(text)
		carry := uint64(0)
		for n := 0; n < len(sum); n += 8 {
			var part uint64
			part, carry = bits.Add64(binary.LittleEndian.Uint64(sum[n:]), binary.LittleEndian.Uint64(one[n:]), carry)
			binary.LittleEndian.PutUint64(sum[n:], part)
		}
	}
	return sum
}
