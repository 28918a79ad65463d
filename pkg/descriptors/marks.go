package descriptors

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxMarks is the most marks of a limit.
const MaxMarks = 4

// Marks is the parts of a limit's capacity at which a key gets a notice, in percent from 1 to 100.
// The marks ascend, and zeros follow the last one. The zero value has no marks.
type Marks [MaxMarks]uint8

// All returns the marks.
func (m *Marks) All() []uint8 {
	n := slices.Index(m[:], 0)
	if n < 0 {
		n = len(m)
	}
	return m[:n]
}

// String returns the marks as rule files write them: "80%, 100%"; "" without marks.
func (m *Marks) String() string {
	var all []string
	for _, mark := range m.All() {
		all = append(all, MarkText(mark))
	}
	return strings.Join(all, ", ")
}

// MarkText returns a mark as rule files write it, such as "80%".
func MarkText(mark uint8) string { return strconv.Itoa(int(mark)) + "%" }

// Threshold returns the least number of used hits at which a key has reached a mark, rounded up, at
// least 1.
func Threshold(capacity uint64, mark uint8) uint64 {
	high, low := bits.Mul64(capacity, uint64(mark))
	quotient, rest := bits.Div64(high, low, 100) // high is less than 100, as mark is at most 100
	if rest > 0 {
		quotient++
	}
	return max(quotient, 1)
}

// readMarks decodes warn_at: a percentage, or a list of these.
func (t *tree) readMarks(fs fields, l *Limit) {
	v, given := fs.get("warn_at")
	if !given {
		return
	}
	items := []value{v}
	if v.node.Kind == yaml.SequenceNode {
		items = t.items(v, "a list of percentages")
		if len(items) == 0 && !t.stopped {
			t.fail(v, "is empty, must have at least one percentage, such as 80%%")
		}
	}
	if n := len(items); n > MaxMarks {
		t.fail(v, "has %d percentages, must have at most %d", n, MaxMarks)
		return
	}
	var all []uint8
	for _, item := range items {
		switch mark, ok := t.mark(item); {
		case !ok:
		case slices.Contains(all, mark):
			t.fail(item, "is %s again: each percentage must stand once", MarkText(mark))
		default:
			all = append(all, mark)
		}
	}
	slices.Sort(all)
	copy(l.WarnAt[:], all)
}

func (t *tree) mark(v value) (uint8, bool) {
	if t.beyond(v) {
		return 0, false
	}
	if v.node.Kind == yaml.ScalarNode && isText(v.node) {
		number, percent := strings.CutSuffix(v.node.Value, "%")
		if n, err := strconv.ParseUint(number, 10, 8); err == nil && percent && number[0] != '+' && n >= 1 && n <= 100 {
			return uint8(n), true
		}
	}
	t.fail(v, "is %s, must be a whole percentage from 1%% to 100%%, such as 80%%", kind(v))
	return 0, false
}
