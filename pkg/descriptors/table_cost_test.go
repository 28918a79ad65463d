package descriptors

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// millionLines is a table of a million lines with values of 36 bytes, as UUIDs have.
func millionLines() []byte {
	var b strings.Builder
	for i := range 1_000_000 {
		fmt.Fprintf(&b, "%08x-0000-4000-8000-%012d,%d\n", i*2654435761%(1<<32), i, i%1000)
	}
	return []byte(b.String())
}

func TestTableOfAMillionLinesIsSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes a second")
	}
	data := millionLines()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	table := NewTable("t.csv", data)
	if err := table.Err(); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	perLine := float64(after.HeapAlloc-before.HeapAlloc) / float64(table.Len())
	t.Logf("%.1f bytes for a line with a value of 36 bytes", perLine)
	if perLine > 75 {
		t.Errorf("got %.1f bytes for a line, want at most 75", perLine)
	}
	runtime.KeepAlive(data)
}

func TestLimitForDoesNotAllocate(t *testing.T) {
	rules := loadTable(t, "domain: d\ndescriptors:\n- {key: a, rate_limit: {table: t.csv, unit: second, requests_per_unit: 1}}\n", "c1,5,minute\n")
	var l Limit
	for _, value := range []string{"c1", "c2"} {
		entries := []Entry{{"a", value}}
		rule := rules.Domain("d").Match(entries)
		if got := testing.AllocsPerRun(100, func() { rule.LimitFor(0, entries, &l) }); got != 0 {
			t.Errorf("%s: got %v allocations, want 0", value, got)
		}
	}
}

func BenchmarkNewTable(b *testing.B) {
	data := millionLines()
	b.ReportAllocs()
	for b.Loop() {
		if err := NewTable("t.csv", data).Err(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLimitFor(b *testing.B) {
	rules := loadTable(b, "domain: d\ndescriptors:\n- {key: a, rate_limit: {table: t.csv, unit: second, requests_per_unit: 1}}\n", string(millionLines()))
	for name, values := range map[string][]string{"found": nil, "not_found": nil} {
		for i := range 1024 {
			value := fmt.Sprintf("%08x-0000-4000-8000-%012d", (i*971)*2654435761%(1<<32), i*971)
			if name == "not_found" {
				value += "x"
			}
			values = append(values, value)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var l Limit
			rule := rules.All()[0]
			entries := []Entry{{Key: "a"}}
			for i := 0; b.Loop(); i++ {
				entries[0].Value = values[i%len(values)]
				if rule.LimitFor(0, entries, &l) != (name == "found") {
					b.Fatal("wrong")
				}
			}
		})
	}
}
