package descriptors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxBytes bounds the bytes of one source.
const maxBytes = 64 << 20

// documents decodes all documents of a source. A document with mistakes may be missing or incomplete.
func (r *reader) documents(s Source) []document {
	if s.Decode != nil {
		return r.decoded(s)
	}
	if s.Documents != nil {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, d := range s.Documents {
			list.Content = append(list.Content, toNode(d, 0))
		}
		return r.list(r.root(list).under("domains"))
	}
	root, ok := r.parse(s)
	if !ok {
		return nil
	}
	if !s.Inline {
		if d, ok := r.document(root); ok {
			return []document{d}
		}
		return nil
	}
	fields, ok := r.pairs(root)
	if !ok {
		return nil
	}
	for _, f := range fields {
		if f.key == "domains" {
			return r.list(f.value)
		}
	}
	return nil
}

// decoded has a source decode its own data, and reads the document that comes of it.
func (r *reader) decoded(s Source) []document {
	if !r.fits(s.Data) {
		return nil
	}
	decoded, mistakes, warnings := s.Decode(s.Data)
	for _, e := range mistakes {
		e.File = r.file
		r.record(e)
	}
	for _, w := range warnings {
		w.File = r.file
		r.warnings = append(r.warnings, w)
	}
	if decoded == nil {
		return nil
	}
	if d, ok := r.document(r.root(toNode(decoded, 0))); ok {
		return []document{d}
	}
	return nil
}

// fits reports whether data are within the bound of a source.
func (r *reader) fits(data []byte) bool {
	if len(data) > maxBytes {
		r.failAt(0, "%d bytes are too many, must be at most %d", len(data), maxBytes)
		return false
	}
	return true
}

// list decodes a list of documents.
func (r *reader) list(v value) []document {
	var all []document
	for _, item := range r.items(v, "a list of rule documents") {
		if d, ok := r.document(item); ok {
			all = append(all, d)
		}
	}
	return all
}

// parse returns the first document of a source; false when there is none, which is a mistake but for a settings file.
func (r *reader) parse(s Source) (value, bool) {
	if !r.fits(s.Data) {
		return value{}, false
	}
	data := plainJSON(bytes.TrimPrefix(s.Data, []byte("\xef\xbb\xbf"))) // UTF-8's byte order mark
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := decodeNode(dec, &doc)
	if first := firstDocument(data); err != nil && !s.Inline && len(first) < len(data) {
		// The parser looks ahead; what is wrong may lie in a document that is ignored anyway.
		if dec = yaml.NewDecoder(bytes.NewReader(first)); decodeNode(dec, &doc) == nil && len(doc.Content) > 0 {
			err = nil
			r.warnings = append(r.warnings, Warning{
				File: r.file, Line: bytes.Count(first, []byte("\n")) + 2, Text: ignored,
			})
		}
	}
	empty := errors.Is(err, io.EOF) || err == nil && (len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null")
	switch {
	case empty && s.Inline:
		return value{}, false
	case empty:
		r.failAt(1, "the document is empty, must be a map with a domain and its descriptors")
		return value{}, false
	case err != nil:
		r.failAt(syntaxLine(err, data), "not valid YAML: %s", syntaxText(err))
		return value{}, false
	}
	if n := cycle(&doc, make(map[*yaml.Node]bool)); n != nil {
		r.failAt(n.Line, "*%s stands inside &%s: a value must not contain itself", n.Value, n.Value)
		return value{}, false
	}
	if !s.Inline {
		var more yaml.Node
		if err := decodeNode(dec, &more); err == nil && len(more.Content) > 0 && more.Content[0].ShortTag() != "!!null" {
			r.warnings = append(r.warnings, Warning{
				File: r.file, Line: more.Content[0].Line,
				Text: ignored,
			})
		}
	}
	return r.root(doc.Content[0]), true
}

// ignored says of a document that it is not the first.
const ignored = "a file holds one document: this one and all after it are ignored"

// firstDocument returns the data up to the line that ends its first document, all of it when there is none. A line that
// begins with --- is nothing else in YAML; where only comments stand before it, it begins the first document.
func firstDocument(data []byte) []byte {
	content := false
	for start := 0; start < len(data); {
		end := start + 1 + bytes.IndexByte(data[start:], '\n')
		if end == start {
			end = len(data)
		}
		switch line := bytes.TrimSpace(data[start:end]); {
		case bytes.HasPrefix(data[start:end], []byte("---")):
			if content {
				return data[:start]
			}
			content = len(line) > len("---")
		case len(line) > 0 && line[0] != '#' && line[0] != '%':
			content = true
		}
		start = end
	}
	return data
}

// decodeNode reads the next document. The parser is not ours: what it panics with on some input becomes an error.
func decodeNode(dec *yaml.Decoder, doc *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the parser failed: %v", p)
		}
	}()
	return dec.Decode(doc)
}

// syntaxText returns the parser's "yaml: line 3: text" without what is around the text: its lines are those where something
// began, or one off.
func syntaxText(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if _, rest, ok := strings.Cut(rest, ": "); ok {
			return rest
		}
	}
	return text
}

// syntaxLine returns the line that makes the parser fail: the last one of the shortest beginning of the data for which it
// says the same. Without it the parser says nothing, or something else.
// In a large file, which that would read too often, it is the parser's own line.
func syntaxLine(err error, data []byte) int {
	var line int
	if n, _ := fmt.Sscanf(err.Error(), "yaml: line %d:", &line); n == 1 && len(data) > 1<<20 {
		return line
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	ends := make([]int, len(lines)) // of each line
	end := 0
	for i, l := range lines {
		end += len(l)
		ends[i] = end
	}
	return 1 + sort.Search(len(ends)-1, func(i int) bool {
		got := decodeNode(yaml.NewDecoder(bytes.NewReader(data[:ends[i]])), new(yaml.Node))
		return got != nil && got.Error() == err.Error()
	})
}

// cycle returns an alias that stands inside of what it stands for, nil when there is none. An alias can only stand for what
// began before it, so that every cycle has such a one.
func cycle(n *yaml.Node, open map[*yaml.Node]bool) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		if open[n.Alias] {
			return n
		}
		return nil
	}
	if len(n.Content) == 0 {
		return nil
	}
	open[n] = true
	defer delete(open, n)
	for _, c := range n.Content {
		if found := cycle(c, open); found != nil {
			return found
		}
	}
	return nil
}
