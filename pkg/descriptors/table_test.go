package descriptors

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
)

func withTables(document string, tables map[string]string) Source {
	return Source{Name: "rules.yaml", Data: []byte(document), Table: func(name string) (*Table, error) {
		data, ok := tables[name]
		if !ok {
			return nil, errors.New(name + ": no such file")
		}
		return NewTable(name, []byte(data)), nil
	}}
}

// loadTable loads a document with one table, t.csv; both must have no mistakes.
func loadTable(tb testing.TB, document, table string) *Rules {
	tb.Helper()
	rules, warnings, err := Load([]Source{withTables(document, map[string]string{"t.csv": table})}, Options{})
	if err != nil || len(warnings) > 0 {
		tb.Fatalf("Load: %v, warnings %v", err, warnings)
	}
	return rules
}

// numbersOf returns the limits of a descriptor with one entry: requests, period, burst, and the end
// of the key.
func numbersOf(tb testing.TB, rules *Rules, key, value string) (all []string) {
	tb.Helper()
	entries := []Entry{{key, value}}
	rule := rules.Domains()[0].Match(entries)
	if rule == nil {
		tb.Fatalf("no rule matches %s=%s", key, value)
	}
	for n := range rule.Limits {
		var l Limit
		found := rule.LimitFor(n, entries, &l)
		if found != (l.TableLine > 0) {
			tb.Errorf("found is %t, and the line is %d", found, l.TableLine)
		}
		text := string(rule.AppendKey(nil, "d", entries, &l))
		all = append(all, fmt.Sprintf("%d/%v burst %d line %d %d %v %s", l.Requests, l.Period, l.Capacity(), l.TableLine, l.Multiplier, l.Unit, text[strings.IndexByte(text, '#'):]))
	}
	return all
}

func TestTableHasNumbersOfItsValues(t *testing.T) {
	const document = `
domain: d
descriptors:
  - key: fixed
    rate_limit: {table: t.csv, requests_per_unit: 1, period: 10s}
  - key: bucket
    value: "c*"
    rate_limit: {table: t2.csv, algorithm: token_bucket, requests_per_unit: 10, unit: second, burst: 7}
  - key: several
    rate_limits:
      - {table: t.csv, requests_per_unit: 3, unit: second}
      - {table: t.csv, requests_per_unit: 5, unit: minute}
      - {requests_per_unit: 7, unit: minute}
  - key: slots
    rate_limit: {table: t3.csv, algorithm: concurrency, max_in_flight: 2, hold: {begin: b, end: e, at_most: 1s}}
`
	if err := NewTable("t.csv", []byte("\"c,2\" , 200\n")).Err(); err == nil {
		t.Error("a blank after a quote: got no mistake")
	}
	rules, warnings, err := Load([]Source{withTables(document, map[string]string{
		"t.csv":  "\xef\xbb\xbfvalue,requests_per_unit,unit\r\nc1,100\r\n\r\n\"c,2\", 200,MINUTE\r\n\"c\"\"3\",4294967295, week ,",
		"t2.csv": "c1,100\nc2,200,minute,9\nc3,0\nc4,4,,11\n",
		"t3.csv": "c1,9",
	})}, Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("Load: %v, warnings %v", err, warnings)
	}
	for _, c := range []struct {
		key, value string
		want       []string
	}{
		{"fixed", "c1", []string{"100/10s burst 100 line 2 10 second #fixed_window/10s"}},
		{"fixed", "c,2", []string{"200/1m0s burst 200 line 4 1 minute #fixed_window/1m"}},
		{"fixed", "c\"3", []string{"4294967295/168h0m0s burst 4294967295 line 5 1 week #fixed_window/7d"}},
		{"fixed", "C1", []string{"1/10s burst 1 line 0 10 second #fixed_window/10s"}},
		{"fixed", "", []string{"1/10s burst 1 line 0 10 second #fixed_window/10s"}},
		{"bucket", "c1", []string{"100/1s burst 7 line 1 1 second #token_bucket/1s"}},
		{"bucket", "c2", []string{"200/1m0s burst 9 line 2 1 minute #token_bucket/1m"}},
		{"bucket", "c3", []string{"0/1s burst 0 line 3 1 second #token_bucket/1s"}},
		{"bucket", "c4", []string{"4/1s burst 11 line 4 1 second #token_bucket/1s"}},
		{"bucket", "c5", []string{"10/1s burst 7 line 0 1 second #token_bucket/1s"}},
		{"several", "c1", []string{
			"100/1s burst 100 line 2 1 second #fixed_window/1s", "100/1m0s burst 100 line 2 1 minute #fixed_window/1m",
			"7/1m0s burst 7 line 0 1 minute #fixed_window/1m.2",
		}},
		{"several", "c,2", []string{ // no two limits of a rule share a count
			"200/1m0s burst 200 line 4 1 minute #fixed_window/1m.3", "200/1m0s burst 200 line 4 1 minute #fixed_window/1m",
			"7/1m0s burst 7 line 0 1 minute #fixed_window/1m.2",
		}},
	} {
		if diff := cmp.Diff(c.want, numbersOf(t, rules, c.key, c.value)); diff != "" {
			t.Errorf("%s=%s (-want +got):\n%s", c.key, c.value, diff)
		}
	}
	held := []Entry{{"slots", "c1"}, {"b", "request"}}
	var l Limit
	if rule := rules.Domain("d").Match(held); !rule.LimitFor(0, held, &l) || l.Requests != 9 {
		t.Errorf("limit of a holder's descriptor: got %d, want 9 of the entry before the holder's", l.Requests)
	}
	if l = l.WithoutTable(); l.Table() != nil || l.TableLine != 0 {
		t.Errorf("WithoutTable left a table")
	}
}

func TestTableReportsEveryMistakeWithItsLine(t *testing.T) {
	for _, c := range []struct {
		name, table string
		want        []string
	}{
		{"several", "a,1\n,2\nb\nc,x\nd,-1\ne,4294967296\nf,1e3\ng,1,fortnight\nh,1,second,0\ni,1,second,2,3,UTC,4\na,5\nk,0,,5\n#l,3\n", []string{
			`t.csv:2: value: is empty, must be the value of an entry, as Envoy sends it`,
			`t.csv:3: has 1 columns, must be value,requests_per_unit[,unit[,burst[,day[,zone]]]]`,
			`t.csv:4: requests_per_unit: is "x", must be a whole number from 0 to 4294967295`,
			`t.csv:5: requests_per_unit: is "-1", must be a whole number from 0 to 4294967295`,
			`t.csv:6: requests_per_unit: is "4294967296", must be a whole number from 0 to 4294967295`,
			`t.csv:7: requests_per_unit: is "1e3", must be a whole number from 0 to 4294967295`,
			`t.csv:8: unit: "fortnight" is not a unit, must be second, minute, hour, day, week, month or year`,
			`t.csv:9: burst: is "0", must be a whole number from 1 to 4294967295`,
			`t.csv:10: has 7 columns, must be value,requests_per_unit[,unit[,burst[,day[,zone]]]]`,
			`t.csv:11: value: "a" is given twice, first in line 1`,
			`t.csv:12: burst: is 5, must be left out: requests_per_unit 0 denies every hit`,
			`t.csv:13: begins with #, and a table has no comments: must be left out, or begin with a value in quotes`,
		}},
		{"twice", "a,1\nb,1\na,1\nb,2\n\"a\",3\n", []string{
			`t.csv:3: value: "a" is given twice, first in line 1`,
			`t.csv:4: value: "b" is given twice, first in line 2`,
			`t.csv:5: value: "a" is given twice, first in line 1`,
		}},
		{"empty", "", []string{`t.csv:1: has no lines, must have at least one: must be value,requests_per_unit[,unit[,burst[,day[,zone]]]]`}},
		{"blank lines", "\n\r\n \n", []string{`t.csv:1: has no lines, must have at least one: must be value,requests_per_unit[,unit[,burst[,day[,zone]]]]`}},
		{"names alone", "value,requests_per_unit\n", []string{`t.csv:1: has no lines, must have at least one: must be value,requests_per_unit[,unit[,burst[,day[,zone]]]]`}},
		{"other names", "tenant,requests_per_unit,burst\na,1\n", []string{`t.csv:1: is the line of names, must be value,requests_per_unit,unit`}},
		{"names later", "a,1\nvalue,requests_per_unit\n", []string{`t.csv:2: requests_per_unit: is "requests_per_unit", must be a whole number from 0 to 4294967295`}},
		{"semicolons", "a;1\n", []string{`t.csv:1: has 1 columns, must be value,requests_per_unit[,unit[,burst[,day[,zone]]]], with commas between`}},
		{"a quote inside", "a\"b,1\nc,2\nd,\n", []string{
			`t.csv:1: has a wrong quote: a text with a comma stands in quotes, with each quote in it doubled, and has no line break`,
			`t.csv:3: requests_per_unit: is "", must be a whole number from 0 to 4294967295`,
		}},
		{"a long line", "a,1\n" + strings.Repeat(",", maxTableLine) + "\nb,x\n", []string{
			`t.csv:2: has 65537 bytes, must be a line of at most 65536`,
			`t.csv:3: requests_per_unit: is "x", must be a whole number from 0 to 4294967295`,
		}},
		{"many columns", strings.Repeat(",", 1000), []string{`t.csv:1: has 1001 columns, must be value,requests_per_unit[,unit[,burst[,day[,zone]]]]`}},
		{"a value of two lines", "\"a\nb\",1\nc,x\n#d", []string{
			`t.csv:1: has a wrong quote: a text with a comma stands in quotes, with each quote in it doubled, and has no line break`,
			`t.csv:2: has a wrong quote: a text with a comma stands in quotes, with each quote in it doubled, and has no line break`,
			`t.csv:3: requests_per_unit: is "x", must be a whole number from 0 to 4294967295`,
			`t.csv:4: begins with #, and a table has no comments: must be left out, or begin with a value in quotes`,
		}},
		{"a quote without end", "a,1\n\"b,1\nc,2\n", []string{
			`t.csv:2: has a wrong quote: a text with a comma stands in quotes, with each quote in it doubled, and has no line break`,
		}},
		{"UTF-16", "\xff\xfea\x00,\x001\x00", []string{`t.csv:1: is UTF-16, must be UTF-8`}},
		{"Latin-1", "caf\xe9,1\n", []string{`t.csv:1: value: "caf\xe9" is not UTF-8, which Envoy sends`}},
		{"NUL", "a\x00,1\x00\n", []string{`t.csv:1: requests_per_unit: is "1\x00", must be a whole number from 0 to 4294967295`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := NewTable("t.csv", []byte(c.table)).Err()
			if err == nil {
				err = errors.New("no mistake")
			}
			must.Match(t, "mistakes", strings.Join(c.want, "\n"), err.Error())
		})
	}
}

func TestTableReportsAThousandMistakesAtMost(t *testing.T) {
	for name, line := range map[string]string{"columns": "x\n", "twice": "x,1\n", "quotes": "x\"\n"} {
		err := NewTable("t.csv", []byte(strings.Repeat(line, 5000))).Err()
		if mistakes, ok := errors.AsType[Errors](err); !ok || len(mistakes) != maxMistakes+1 {
			t.Errorf("%s: got %d mistakes, want %d", name, len(mistakes), maxMistakes+1)
		}
	}
}

func TestLoadReportsMistakesOfTablesBesideItsOwn(t *testing.T) {
	const document = `domain: d
defaults: {algorithm: token_bucket}
default: {table: ok.csv, unit: second, requests_per_unit: 1}
descriptors:
  - {key: a, rate_limit: {table: bad.csv, unit: second, requests_per_unit: 1}}
  - {key: b, rate_limit: {table: bad.csv, unit: second, requests_per_unit: 1, algorithm: fixed_window}}
  - {key: c, rate_limit: {table: missing.csv, unit: second, requests_per_unit: 1}}
  - {key: d, rate_limit: {table: /etc/passwd, unit: second, requests_per_unit: 1}}
  - {key: e, value: one, rate_limit: {table: ok.csv, unit: second, requests_per_unit: 1}}
  - {key: f, value: f*, share_threshold: true, rate_limit: {table: ok.csv, unit: second, requests_per_unit: 1}}
  - {key: g, rate_limit: {table: ok.csv, unlimited: true}}
  - {key: h, rate_limit: {table: burst.csv, unit: second, requests_per_unit: 1, algorithm: fixed_window}}
  - {key: i, rate_limit: {table: large.csv, unit: second, requests_per_unit: 1, algorithm: sliding_window_log}}
  - {key: j, rate_limit: {table: burst.csv, algorithm: concurrency, max_in_flight: 1, hold: {begin: x, end: y, at_most: 1s}}}
  - {key: k, rate_limit: {table: large.csv, period: 1ms, requests_per_unit: 1, algorithm: token_bucket_integer}}
  - {key: l, rate_limit: {table: [ok.csv], unit: second, requests_per_unit: 1}}
  - {key: m, table: ok.csv}
`
	got := messages(t, withTables(document, map[string]string{
		"ok.csv": "a,1\n* ,2\n", "bad.csv": "a\nb,1,,7\n", "burst.csv": "a,1,minute,5\n", "large.csv": "a,20000\nb,9000000\nc,9000000,second\n",
	}))
	want := []string{
		`bad.csv:1: has 1 columns, must be value,requests_per_unit[,unit[,burst[,day[,zone]]]]`,
		`bad.csv:2: burst: is 7, must be left out for fixed_window: only token_bucket has a burst (rules.yaml:6)`,
		`burst.csv:1: burst: is 5, must be left out for fixed_window: only token_bucket has a burst (rules.yaml:12)`,
		`burst.csv:1: unit: is minute, must be left out for concurrency (rules.yaml:14)`,
		`large.csv:1: requests_per_unit: is 20000, must be at most 10000 for sliding_window_log, which remembers every hit (rules.yaml:13)`,
		`large.csv:2: requests_per_unit: is 9000000, must be at most 10000 for sliding_window_log, which remembers every hit (rules.yaml:13)`,
		`large.csv:2: requests_per_unit: is 9000000, must be at most 1000000 for token_bucket_integer, which refills at most a token per nanosecond (rules.yaml:15)`,
		`large.csv:3: requests_per_unit: is 9000000, must be at most 10000 for sliding_window_log, which remembers every hit (rules.yaml:13)`,
		`rules.yaml:3: default.table: belongs in a rate_limit, must not be here`,
		`rules.yaml:7: descriptors[2].rate_limit.table: missing.csv: no such file`,
		`rules.yaml:8: descriptors[3].rate_limit.table: is "/etc/passwd", must be the name of a file that ends in .csv`,
		`rules.yaml:9: descriptors[4].rate_limit.table: is for a descriptor without a value, or with a ` + "`*`" + ` in it, but the value is "one"`,
		`rules.yaml:10: descriptors[5].rate_limit.table: stands beside share_threshold: must be one of the two, as values with one count have one limit`,
		`rules.yaml:11: descriptors[6].rate_limit.table: stands beside unlimited, must be left out`,
		`rules.yaml:16: descriptors[11].rate_limit.table: is a list, must be text`,
		`rules.yaml:17: descriptors[12].table: belongs in a rate_limit, must not be here`,
		"ok.csv:2: warning: value: has blanks around it, which a request must send too: probably \"*\" is meant",
	}
	must.Match(t, "messages", want, got)
	without := []byte("domain: d\ndescriptors:\n- key: a\n  rate_limit: {table: t.csv, unit: second, requests_per_unit: 1}\n")
	want = []string{"rules.yaml:4: descriptors[0].rate_limit.table: is a file, and these rules do not come from a file: must be left out"}
	must.Match(t, "a source without tables", want, messages(t, Source{Name: "rules.yaml", Data: without}))
}

func TestTablesHaveABoundTogether(t *testing.T) {
	source := withTables("domain: d\ndescriptors:\n- {key: a, rate_limit: {table: a.csv, unit: second, requests_per_unit: 1}}\n"+
		"- {key: b, rate_limits: [{table: a.csv, unit: second, requests_per_unit: 1}, {table: b.csv, unit: second, requests_per_unit: 1}]}\n",
		map[string]string{"a.csv": "a,1\n", "b.csv": "b,1\n"})
	if _, _, err := Load([]Source{source}, Options{MaxTableBytes: 8}); err != nil {
		t.Errorf("two tables of 4 bytes each, one of them twice: %v", err)
	}
	_, _, err := Load([]Source{source}, Options{MaxTableBytes: 7})
	if want := "rules.yaml:4: descriptors[1].rate_limits[1].table: b.csv: has 4 bytes beside 4 bytes of other tables, must be at most 7 together (max table bytes)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestHashCoversTablesInAnyOrder(t *testing.T) {
	const document = "domain: d\ndescriptors:\n- {key: a, rate_limit: {table: t.csv, unit: second, requests_per_unit: 1}}\n"
	first := loadTable(t, document, "a,1\nb,2\nc,3,second\n")
	if got := loadTable(t, document, "\nc,3,SECOND\nb,2\n\"a\",1\n"); got.Hash() != first.Hash() || len(got.Since(first)) > 0 {
		t.Errorf("another order of the lines: got the hash %s and the changes %v, want the same hash %s", got.Hash(), got.Since(first), first.Hash())
	}
	seen := map[string]string{first.Hash(): "first", load(t, strings.Replace(document, "table: t.csv, ", "", 1)).Hash(): "without a table"}
	for _, table := range []string{"a,2\nb,1\nc,3,second\n", "a,1\nb,2\nc,3\n", "a,1\nb,2\n", "a,1\nb,2\nc,3,second\nd,1\n", "ab,1\n,2\n"[:5], "a,12\nb,\n"[:5]} {
		other := loadTable(t, document, table)
		if before, ok := seen[other.Hash()]; ok {
			t.Errorf("%q has the hash of %q", table, before)
		}
		seen[other.Hash()] = table
		want := []Change{{Domain: "d", Changed: []string{"a"}}}
		must.Match(t, "changes", want, other.Since(first))
	}
}

// FuzzTable: for any data, NewTable returns a table or mistakes. Every value of a table is found,
// with its own numbers; no other is.
func FuzzTable(f *testing.F) {
	for _, seed := range []string{
		"a,1\nb,2,minute,3\n", "\xef\xbb\xbfvalue,requests_per_unit\r\n\"a\"\"b\",5\r\n", "\"a\nb\",1\n\n\n,2", "a,1\na,1\n", "\"", "\x00,0\n", "#a,1\n", "a,1,,,15,UTC\nb,2,month,,31,\nc,3,,,,Europe/Berlin\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := string(data)
		table := NewTable("rules.yaml", data)
		if string(data) != before {
			t.Error("the data has changed")
		}
		for _, e := range table.mistakes {
			checkMessage(t, e.Error())
		}
		if table.Err() != nil {
			return
		}
		for _, w := range table.warnings {
			checkMessage(t, w.String())
		}
		lines := strings.Count(string(data), "\n") + 1
		if table.Len() == 0 || table.Len() > lines {
			t.Errorf("got %d values in %d lines", table.Len(), lines)
		}
		for i := range table.rows.all {
			if got := table.rows.find(string(table.rows.value(i))); got != &table.rows.all[i] {
				t.Errorf("row %d: found %v", i, got)
			}
			if line := table.rows.all[i].line; line < 1 || int(line) > lines {
				t.Errorf("row %d is in line %d of %d", i, line, lines)
			}
		}
		if table.rows.find(string(data)+"x") != nil {
			t.Error("found a value that is not there")
		}
	})
}

// millionLines is a table of a million lines with values of 36 bytes, as UUIDs have.
func millionLines() []byte {
	var b strings.Builder
	for i := range 1_000_000 {
		fmt.Fprintf(&b, "%08x-0000-4000-8000-%012d,%d\n", i*2654435761%(1<<32), i, i%1000)
	}
	return []byte(b.String())
}

func TestTableOfAMillionLinesIsSmall(t *testing.T) {
	race.Without(t)
	if testing.Short() {
		t.Skip("-short: takes a second")
	}
	data := millionLines()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	table := NewTable("t.csv", data)
	must.Do(t, table.Err())
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
		must.Do(b, NewTable("t.csv", data).Err())
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
