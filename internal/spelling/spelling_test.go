package spelling

import (
	"math/rand/v2"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Std: []string{}, Third: []string{}})
}

// slowDistance is the textbook table.
func slowDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	same := func(i, j int) bool { return folded(a[i]) == folded(b[j]) }
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if !same(i, j) {
				replaced++
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, replaced)
			if i > 0 && j > 0 && same(i, j-1) && same(i-1, j) {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}

func TestTheDistanceOfTextsIsThatOfTheTextbook(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func() []byte {
		b := make([]byte, random.IntN(80))
		for i := range b {
			b[i] = "aAbB-_cdé"[random.IntN(10)]
		}
		return b
	}
	for n := range 20_000 {
		a, b := text(), text()
		if n%2 == 0 { // a few slips
			b = append(b[:0], a...)
			for range random.IntN(4) {
				if len(b) > 1 {
					i := random.IntN(len(b) - 1)
					b[i], b[i+1] = b[i+1], b[i]
					b[random.IntN(len(b))] = 'x'
				}
			}
		}
		p := New(string(a))
		if got, want := p.Distance(string(b)), slowDistance(string(a[:min(len(a), MaxBytes)]), string(b[:min(len(b), MaxBytes)])); got != want {
			t.Fatalf("the distance of %q and %q is %d; want %d", a, b, got, want)
		}
	}
}

func TestSlipsOfOneStep(t *testing.T) {
	for _, c := range []struct {
		meant, written string
		want           int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"WEIR_MAX_KEYS", "weir-max-keys", 0},
		{"burst", "brust", 1},
		{"burst", "bursts", 1},
		{"burst", "brst", 1},
		{"burst", "bunst", 1},
		{"ca", "abc", 3}, // a swap whose letters change again is no swap
	} {
		p := New(c.meant)
		if got := p.Distance(c.written); got != c.want {
			t.Errorf("the distance of %q and %q is %d; want %d", c.meant, c.written, got, c.want)
		}
	}
}
