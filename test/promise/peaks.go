package promise

import "slices"

// peaks finds the interval that holds most now, of the intervals that begin where a span begins. A
// tree over the beginnings: each node knows the largest value below and the sum added to all of the
// values below.
type peaks struct {
	origin int64 // the first beginning, from which values count instants
	begins []int64
	size   int // of the lowest floor, a power of two
	most   []int64
	added  []int64
}

// least is less than any value.
const least = -1 << 62

// newPeaks returns the beginnings of spans, with a value for each, of its distance from the first.
func newPeaks(spans []span, value func(from int64) int64) *peaks {
	t := &peaks{size: 1}
	for _, s := range spans {
		t.begins = append(t.begins, s.from)
	}
	slices.Sort(t.begins)
	t.begins = slices.Compact(t.begins)
	if len(t.begins) > 0 {
		t.origin = t.begins[0]
	}
	for t.size < len(t.begins) {
		t.size *= 2
	}
	t.most, t.added = make([]int64, 2*t.size), make([]int64, 2*t.size)
	for i := range t.size {
		t.most[t.size+i] = least
		if i < len(t.begins) {
			t.most[t.size+i] = value(t.begins[i] - t.origin)
		}
	}
	for i := t.size - 1; i > 0; i-- {
		t.most[i] = max(t.most[2*i], t.most[2*i+1])
	}
	return t
}

// add adds to the values of all beginnings up to from: those intervals hold a hit that begins at
// from.
func (t *peaks) add(from, value int64) {
	end, _ := slices.BinarySearch(t.begins, from+1)
	t.addBelow(1, 0, t.size, end, value)
}

// addBelow adds to all beginnings before end below a node with the floor [from, to).
func (t *peaks) addBelow(node, from, to, end int, value int64) {
	switch {
	case from >= end:
		return
	case to <= end:
		t.most[node] += value
		t.added[node] += value
		return
	}
	middle := (from + to) / 2
	t.addBelow(2*node, from, middle, end, value)
	t.addBelow(2*node+1, middle, to, end, value)
	t.most[node] = max(t.most[2*node], t.most[2*node+1]) + t.added[node]
}

// max returns the largest value of the beginnings in [from, to], or least for an empty range.
func (t *peaks) max(from, to int64) int64 {
	first, _ := slices.BinarySearch(t.begins, from)
	end, _ := slices.BinarySearch(t.begins, to+1)
	if first >= end {
		return least
	}
	return t.maxBelow(1, 0, t.size, first, end)
}

func (t *peaks) maxBelow(node, from, to, first, end int) int64 {
	switch {
	case to <= first || from >= end:
		return least
	case first <= from && to <= end:
		return t.most[node]
	}
	middle := (from + to) / 2
	return max(t.maxBelow(2*node, from, middle, first, end), t.maxBelow(2*node+1, middle, to, first, end)) + t.added[node]
}
