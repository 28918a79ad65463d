package descriptors

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/testing/race"
)

// allocated returns the bytes that a function allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// repeated returns a text that is repeated up to a length, after a head.
func repeated(head, text string, length int) []byte {
	return []byte(head + strings.Repeat(text, (length-len(head))/len(text)+1))
}

const head = "domain: edge\ndescriptors:\n"

// The shapes took 45 to 140 times their text when the bound was 64 MiB of text.
func TestSourcesAboveTheBoundAreRefusedUnread(t *testing.T) {
	for name, data := range map[string][]byte{
		"many rules":       repeated(head, "- {key: a, rate_limit: {unit: day, requests_per_unit: 5}}\n", 50_000_000),
		"one text":         append(repeated(head+`- key: "`, "a", 50_000_000), '"'),
		"empty items":      repeated(head, "-\n", DefaultMaxBytes/6+100),
		"numbers":          repeated("domain: edge\ndescriptors: [", "1,", DefaultMaxBytes/6+100),
		"empty maps":       repeated("domain: edge\ndescriptors: [", "{},", DefaultMaxBytes/4),
		"keys":             repeated("domain: edge\n", "a: 1\n", DefaultMaxBytes/4),
		"keys in JSON":     repeated(`{"domain":"edge","descriptors":[`, `{"a":1},`, DefaultMaxBytes/4),
		"unclosed nesting": repeated("domain: edge\ndescriptors: ", "[", DefaultMaxBytes/12+100),
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			used := allocated(func() { got = messages(t, Source{Name: "rules.yaml", Data: data}) })
			if len(got) != 1 || !strings.HasPrefix(got[0], "rules.yaml: has ") || !strings.HasSuffix(got[0], ", must be at most 20971520 together (max bytes)") {
				t.Errorf("got %q, want one mistake about the size", got)
			}
			if used > 64<<10 {
				t.Errorf("%d bytes allocated to refuse %d bytes, want at most 64 KiB", used, len(data))
			}
		})
	}
}

func TestTheBoundIsOnAllSourcesTogether(t *testing.T) {
	document := func(domain string, length int) Source {
		return Source{Name: domain, Data: repeated("domain: "+domain+"\n", "# a comment\n", length-len("# a comment\n"))}
	}
	load := func(sources ...Source) []string {
		_, _, err := Load(sources, Options{MaxBytes: 10_000})
		if err == nil {
			return nil
		}
		return strings.Split(err.Error(), "\n")
	}
	if got := load(document("a", 5000), document("b", 4990)); got != nil {
		t.Errorf("9990 bytes of 10000: got %q", got)
	}
	want := []string{"b: has 5998 bytes beside 4990 bytes of other rules, must be at most 10000 together (max bytes)"}
	if diff := cmp.Diff(want, load(document("a", 5000), document("b", 6000), document("c", 5000))); diff != "" {
		t.Errorf("a source that does not fit must not count (-want +got):\n%s", diff)
	}
	many := Source{Name: "d", Data: repeated(head, "- {}\n", 5000)}
	want = []string{"d: has 5001 bytes with so many values that it counts as 23928: it has 23928 bytes, must be at most 10000 together (max bytes)"}
	if diff := cmp.Diff(want, load(many)); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

// Ten thousand rules of 1 KiB, and a hundred thousand short rules, are within the default. Of the
// short rules a tenth is loaded.
func TestLargeConfigurationsLoad(t *testing.T) {
	if race.Enabled {
		t.Skip("costs seconds with the race detector, and has one goroutine")
	}
	for _, c := range []struct {
		name        string
		rules, load int
		filling     int // bytes of a value
	}{
		{"1 KiB", 10_000, 10_000, 960},
		{"short", 100_000, 10_000, 0},
	} {
		document := func(rules int) []byte {
			text := []byte(head)
			for i := range rules {
				text = fmt.Appendf(text, "- {key: user, value: %d%s, rate_limit: {unit: day, requests_per_unit: 5}}\n", i, strings.Repeat("x", c.filling))
			}
			return text
		}
		if text, tooLarge := (Options{}).TooLarge(Size(document(c.rules)), 0); tooLarge {
			t.Errorf("%s: %d rules: %s", c.name, c.rules, text)
		}
		data := document(c.load)
		var rules *Rules
		used := float64(allocated(func() { rules = load(t, string(data)) })) / float64(Size(data))
		if rules.Count() != c.load || used > 30 {
			t.Errorf("%s: %d rules of %d, and %.1f times the size allocated, want at most 30 times", c.name, rules.Count(), c.load, used)
		}
	}
}

// FuzzSize: the parser makes at most two nodes for each value that Size counts, and a few.
func FuzzSize(f *testing.F) {
	for _, pattern := range []string{"testdata/*/*.yaml", "testdata/*/*.txtar"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no files %s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	for _, text := range []string{
		"[{a},{b},{c}]", "{a,b,c,d}", "? a\n? b\n? c", "-\n-\n-", "a:\nb:\nc:", `{"a":1,"b":[2,3]}`, "[[[]],[[]]]", "a:\u2028b:\u0085c:", "- - - a",
		"{a: b, ? c : d, 'e':f}", "&a [*a, *a]", "a: {b: {c: {d}}}", "[a: b, c: d]", "!!set {a, b}", "- ? - ? - a",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var doc yaml.Node
		if n, ok := jsonNode(data); ok {
			doc.Content = []*yaml.Node{n}
		} else if decodeNode(data, &doc) != nil {
			return
		}
		if got, most := count(&doc), 2*values(data)+4; got > most {
			t.Errorf("%q has %d nodes, values counts %d", data, got, values(data))
		}
	})
}

// count returns the number of nodes.
func count(n *yaml.Node) int {
	sum := 1
	for _, c := range n.Content {
		sum += count(c)
	}
	return sum
}
