package readme

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A document is a Markdown file.
type document struct {
	name   string // path from the root of the repository
	lines  []string
	blocks []block
	prose  []string // the lines, empty inside a block
}

// A block is a fenced block with the words of the comment before it, or a comment alone.
type block struct {
	kind     string // the first word of the comment; "output" for the block after a run
	words    []string
	language string
	text     string
	from, to int // the block is document.lines[from:to]
}

// option returns the text after NAME= in the comment.
func (b *block) option(name string) string {
	for _, word := range b.words {
		if value, found := strings.CutPrefix(word, name+"="); found {
			return value
		}
	}
	return ""
}

// has reports whether the comment has that word.
func (b *block) has(word string) bool { return slices.Contains(b.words, word) }

// kinds is how many words each kind of block needs after its own.
var kinds = map[string]int{
	"serve": 0, "demo": 0, "redis": 0, "start": 0, "run": 0, "file": 1, "rules": 0, "topology": 1, "quote": 1, "envoy": 0, "not": 2,
}

var comment = regexp.MustCompile(`^<!-- test: (.*) -->$`)

// parse reads a document. A block without a comment is an error, but for that after a run.
func parse(name, text string) (document, error) {
	d := document{name: name, lines: strings.Split(text, "\n")}
	d.prose = make([]string, len(d.lines))
	var marked []string // the words of the comment that waits for its block
	for i := 0; i < len(d.lines); i++ {
		line := d.lines[i]
		if m := comment.FindStringSubmatch(line); m != nil {
			words := strings.Fields(m[1])
			if least, known := kinds[words[0]]; !known || len(words)-1 < least {
				return d, fmt.Errorf("%s:%d: %q is not a comment that means something", name, i+1, line)
			}
			if words[0] == "start" {
				d.blocks = append(d.blocks, block{kind: "start", words: words[1:], text: strings.Join(words[1:], " "), from: i, to: i})
				continue
			}
			marked = words
			continue
		}
		language, found := strings.CutPrefix(line, "```")
		if !found {
			d.prose[i] = line
			if strings.TrimSpace(line) != "" && marked != nil {
				return d, fmt.Errorf("%s:%d: the comment before is about a block, and there is none", name, i+1)
			}
			continue
		}
		end := i + 1
		for end < len(d.lines) && d.lines[end] != "```" {
			end++
		}
		if end == len(d.lines) {
			return d, fmt.Errorf("%s:%d: the block has no end", name, i+1)
		}
		b := block{language: language, text: strings.Join(append(d.lines[i+1:end:end], ""), "\n"), from: i + 1, to: end}
		switch last := len(d.blocks) - 1; {
		case marked != nil:
			b.kind, b.words = marked[0], marked[1:]
		case last >= 0 && d.blocks[last].kind == "run":
			b.kind = "output"
		default:
			return d, fmt.Errorf("%s:%d: nothing says what this block is", name, i+1)
		}
		d.blocks = append(d.blocks, b)
		i, marked = end, nil
	}
	return d, nil
}

// documents returns README.md and docs/*.md, without generated pages and pages of measurements.
func documents(t *testing.T) []document {
	t.Helper()
	names := []string{"README.md"}
	found, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		switch name := filepath.Base(path); name {
		case "settings.md", "benchmarks.md":
		default:
			names = append(names, "docs/"+name)
		}
	}
	var all []document
	for _, name := range names {
		d, err := parse(name, readFile(t, name))
		if err != nil {
			t.Error(err)
			continue
		}
		all = append(all, d)
	}
	return all
}

// readFile returns the content of a file of the repository.
func readFile(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// fence stands for ``` in texts of tests.
func fence(text string) string { return strings.ReplaceAll(text, "'''", "```") }

func TestABlockIsReadWithItsCommentAndTheOutputAfterARun(t *testing.T) {
	d, err := parse("x.md", fence("# x\n\n<!-- test: start --rules r -->\n\n<!-- test: run exit=1 -->\n'''sh\nfalse\n'''\n\nprints\n\n'''text\nno\n'''\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range d.blocks {
		got = append(got, fmt.Sprintf("%s|%s|%s|%s", b.kind, strings.Join(b.words, " "), b.language, b.text))
	}
	want := []string{"start|--rules r||--rules r", "run|exit=1|sh|false\n", "output||text|no\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}

func TestABlockThatNothingIsSaidOfIsAnError(t *testing.T) {
	for _, text := range []string{
		"'''sh\nls\n'''\n",
		"<!-- test: rules -->\n'''yaml\n'''\n'''text\n'''\n",
		"<!-- test: walk -->\n'''sh\n'''\n",
		"<!-- test: quote -->\n'''sh\n'''\n",
		"<!-- test: run -->\nno block\n",
		"<!-- test: run -->\n'''sh\nls\n",
	} {
		if _, err := parse("x.md", fence(text)); err == nil {
			t.Errorf("%q: got no error", text)
		}
	}
}
