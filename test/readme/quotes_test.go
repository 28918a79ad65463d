package readme

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/pkg/descriptors"
)

func TestQuotesStandInTheFilesTheyAreFrom(t *testing.T) {
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.kind == "quote" && !contains(readFile(t, b.words[0]), b.text) {
				t.Errorf("%s:%d: these lines do not stand in %s, one after the other", d.name, b.from, b.words[0])
			}
		}
	}
}

// contains reports whether the lines of the quote stand in the text, one after the other; all may
// be indented by the same.
func contains(text, quote string) bool {
	lines := strings.Split(text, "\n")
	want := flush(strings.Split(strings.TrimRight(quote, "\n"), "\n"))
	for i := 0; i+len(want) <= len(lines); i++ {
		if slices.Equal(flush(lines[i:i+len(want)]), want) {
			return true
		}
	}
	return false
}

// flush returns lines without the space that all of them begin with, and without space at their
// ends.
func flush(lines []string) []string {
	indent, first := "", true
	for _, line := range lines {
		if strings.TrimSpace(line) == "" {
			continue
		}
		own := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
		if first || strings.HasPrefix(indent, own) {
			indent, first = own, false
		}
		for !strings.HasPrefix(own, indent) {
			indent = indent[:len(indent)-1]
		}
	}
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = strings.TrimRight(strings.TrimPrefix(line, indent), " \t")
	}
	return out
}

func TestAQuoteIsFoundWhateverItsIndentAndNotWhenALineDiffers(t *testing.T) {
	const text = "a:\n  b:\n\n    c: 1\n  d:\n"
	for quote, want := range map[string]bool{
		"b:\n\n  c: 1\n": true,
		"  b:\n":         true,
		"b:\n\n  c: 2\n": false,
		"b:\n\nc: 1\n":   false,
		"b:\nd:\n":       false,
		text:             true,
	} {
		if got := contains(text, quote); got != want {
			t.Errorf("%q: got %t, want %t", quote, got, want)
		}
	}
}

func TestRuleFilesOfTheDocumentsLoad(t *testing.T) {
	n := 0
	for _, d := range documents(t) {
		tables := make(map[string]string) // by path
		for _, b := range d.blocks {
			if b.kind == "file" && slices.Contains([]string{".csv", ".txt"}, filepath.Ext(b.words[0])) {
				tables[b.words[0]] = b.text
			}
		}
		for _, b := range d.blocks {
			isRules := b.kind == "rules" || b.kind == "file" && filepath.Ext(b.words[0]) == ".yaml" && strings.Contains("\n"+b.text, "\ndomain:")
			if !isRules {
				continue
			}
			n++
			source := descriptors.Source{Name: d.name, Data: []byte(b.text), Table: func(name string) (*descriptors.Table, error) {
				path := descriptors.TablePath(b.words[0], name)
				return descriptors.NewTable(path, []byte(tables[path])), nil
			}}
			_, warnings, err := descriptors.Load([]descriptors.Source{source}, descriptors.Options{})
			switch broken := b.has("broken"); {
			case broken && err == nil && len(warnings) == 0:
				t.Errorf("%s:%d: the document says that these rules are broken, and nothing is wrong with them", d.name, b.from)
			case !broken && (err != nil || len(warnings) > 0):
				t.Errorf("%s:%d: %v %v", d.name, b.from, err, warnings)
			}
		}
	}
	if n < 5 {
		t.Errorf("got %d rule documents, want the many that there are", n)
	}
}

// TestWorkedExamplesOfTheAlgorithmsAreQuoted holds that the documents show an example of each
// algorithm that is tested as it stands.
func TestWorkedExamplesOfTheAlgorithmsAreQuoted(t *testing.T) {
	quoted := make(map[string]bool)
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.kind == "quote" {
				quoted[b.words[0]] = true
			}
		}
	}
	for _, name := range []string{"token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket_integer", "debt", "refunds", "concurrency", "costs"} {
		if file := "pkg/algorithms/testdata/" + name + ".txt"; !quoted[file] {
			t.Errorf("no document quotes %s", file)
		}
	}
}
