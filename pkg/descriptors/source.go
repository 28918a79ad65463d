package descriptors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// documents decodes all documents of a source, beside sources of the size before, and adds its
// size. A document with mistakes may be missing or incomplete.
func (r *reader) documents(s Source, size *int) (all []document) {
	for _, e := range s.Mistakes {
		e.File = r.file
		r.record(e)
	}
	for _, w := range s.Warnings {
		w.File = r.file
		r.warnings = append(r.warnings, w)
	}
	if len(s.Data) == 0 && len(s.Mistakes) > 0 {
		return nil
	}
	var ok bool
	if *size, ok = r.fits(s.Data, *size); !ok {
		return nil
	}
	root, ok := r.parse(s)
	if !ok {
		return nil
	}
	read := func(v value) {
		if d, ok := r.document(v); ok {
			all = append(all, d)
		}
	}
	if !s.Settings {
		read(root)
		return all
	}
	settings, _ := r.pairs(root)
	if domains, ok := fields(settings).get("domains"); ok {
		for item := range r.each(domains, "a list of rule documents") {
			read(item)
		}
	}
	return all
}

// parse returns the content of a source, see root.
func (r *reader) parse(s Source) (value, bool) {
	data := bytes.TrimPrefix(s.Data, []byte("\xef\xbb\xbf")) // UTF-8's byte order mark
	if n, ok := jsonNode(data); ok {
		return r.root(&yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{n}}, data, nil)
	}
	data, ignored := firstDocument(data) // the line of a second document
	v, ok := r.parseInPieces(data)
	if !ok {
		v, ok = r.parseAll(data)
	}
	if ok && ignored > 0 && !s.Settings {
		r.warnings = append(r.warnings, Warning{
			File: r.file, Line: ignored, Text: "a file holds one document: this one and all after it are ignored",
		})
	}
	return v, ok
}

func (r *reader) parseAll(data []byte) (value, bool) {
	var doc yaml.Node
	err := decodeNode(data, &doc)
	return r.root(&doc, data, err)
}

// root returns the content of a document that was parsed with err. An empty document is false, and
// a mistake except in settings.
func (r *reader) root(doc *yaml.Node, data []byte, err error) (value, bool) {
	s := r.source
	switch empty := errors.Is(err, io.EOF) || err == nil && (len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null"); {
	case empty && s.Settings:
		return value{}, false
	case empty:
		r.failAt(1, "the document is empty, must be a map with a domain and its descriptors")
		return value{}, false
	case err != nil:
		at := syntaxLine(err, data)
		r.failAt(at, "not valid YAML: %s", syntaxText(err, data, at))
		return value{}, false
	}
	if n := r.cycle(doc, make(map[*yaml.Node]bool)); n != nil {
		r.failAt(n.Line, "*%s stands inside &%s: a value must not contain itself", n.Value, n.Value)
		return value{}, false
	}
	if s.Generated {
		clearLines(doc)
	}
	return r.resolve(value{node: doc.Content[0], line: doc.Content[0].Line}), true
}

func clearLines(n *yaml.Node) {
	n.Line = 0
	for _, c := range n.Content {
		clearLines(c)
	}
}

// firstDocument returns the data up to the line that ends the first document, and the line of the
// next document, else 0. A line that begins with --- or ... is always a mark; a mark before any
// content begins the first document.
func firstDocument(data []byte) (first []byte, next int) {
	first = data
	content, ended, number := false, false, 0
	start := 0
	for line := range bytes.Lines(data) {
		number++
		text := bytes.TrimSpace(line)
		alone := len(text) == 3 || len(text) > 3 && (text[3] == ' ' || text[3] == '\t')
		if alone && (bytes.HasPrefix(line, []byte("---")) || bytes.HasPrefix(line, []byte("..."))) {
			if content && !ended {
				first, ended = data[:start], true
			}
			text = bytes.TrimSpace(text[3:])
		}
		if len(text) > 0 && text[0] != '#' && text[0] != '%' {
			if ended {
				return first, number
			}
			content = true
		}
		start += len(line)
	}
	return first, 0
}

// decodeNode reads the first document of data. A panic of the parser becomes an error.
func decodeNode(data []byte, doc *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the parser failed: %v", p)
		}
	}()
	return yaml.NewDecoder(bytes.NewReader(data)).Decode(doc)
}

// syntaxText returns the text in the parser's "yaml: line 3: text", whose line may be wrong. The
// parser does not mention a tab in the indentation; syntaxText does.
func syntaxText(err error, data []byte, at int) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if _, rest, ok := strings.Cut(rest, ": "); ok {
			text = rest
		}
	}
	number := 0
	for line := range bytes.Lines(data) {
		indentation := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
		if number++; number == at && bytes.ContainsRune(indentation, '\t') {
			return fmt.Sprintf("a tab indents this line (in column %d), must be spaces", bytes.IndexByte(line, '\t')+1)
		}
	}
	switch text {
	case "did not find expected '-' indicator":
		return "the line is no item of the list above: indent a key as far as the keys of its item; a new item begins with \"- \""
	case "did not find expected key":
		return "the line is no key of the map above: the keys of a map are indented alike"
	case "mapping values are not allowed in this context":
		return "a key stands where the value above it goes on: probably the line is indented too far"
	case "did not find expected ',' or '}'", "did not find expected ',' or ']'":
		return text + ": in a map or list of one line, a text with { } [ ] or , stands in quotes, such as path: \"/api/{id}\""
	case "did not find expected node content":
		return text + ": a text that begins with a mark such as : or , stands in quotes, such as \"::1/128\""
	}
	return text
}

// syntaxLine returns the line that makes the parser fail: the last line of the shortest beginning
// of the data with the same error. In a large file, which that search would read too often,
// syntaxLine returns the parser's own line.
func syntaxLine(err error, data []byte) int {
	var line int
	if n, _ := fmt.Sscanf(err.Error(), "yaml: line %d:", &line); n == 1 && len(data) > 1<<20 {
		return line
	}
	var ends []int // of each line
	for l := range bytes.Lines(data) {
		ends = append(ends, len(l))
		if n := len(ends); n > 1 {
			ends[n-1] += ends[n-2]
		}
	}
	return 1 + sort.Search(len(ends)-1, func(i int) bool {
		got := decodeNode(data[:ends[i]], new(yaml.Node))
		return got != nil && got.Error() == err.Error()
	})
}

// cycle returns an alias inside the value that it repeats, or nil, and notes whether the document
// has aliases. An alias repeats a value that began before it, so that every cycle has such an
// alias.
func (r *reader) cycle(n *yaml.Node, open map[*yaml.Node]bool) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		r.aliases = true
		if open[n.Alias] {
			return n
		}
		return nil
	}
	if len(n.Content) == 0 {
		return nil
	}
	if n.Anchor != "" {
		open[n] = true
		defer delete(open, n)
	}
	for _, c := range n.Content {
		if found := r.cycle(c, open); found != nil {
			return found
		}
	}
	return nil
}

// jsonReader turns a JSON document into the nodes that the YAML parser would make. YAML reads most
// JSON, but not every escape and every character in a text, and takes longer.
type jsonReader struct {
	*json.Decoder
	data []byte
	read int64 // bytes before line
	line int
}

// jsonNode returns the content of a JSON document; false for other data.
func jsonNode(data []byte) (*yaml.Node, bool) {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) || !utf8.Valid(data) || !json.Valid(data) {
		return nil, false
	}
	r := &jsonReader{Decoder: json.NewDecoder(bytes.NewReader(data)), data: data, line: 1}
	r.UseNumber()
	return r.node(), true
}

// node returns the next key or value. The data are valid, so that no token fails.
func (r *jsonReader) node() *yaml.Node {
	token, _ := r.Token()
	at := r.InputOffset()
	r.line += bytes.Count(r.data[r.read:at], []byte("\n"))
	r.read = at
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: r.line}
	switch t := token.(type) {
	case json.Delim:
		if n.Kind, n.Tag = yaml.MappingNode, "!!map"; t == '[' {
			n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		}
		for r.More() {
			n.Content = append(n.Content, r.node())
		}
		_, _ = r.Token() // the closing delimiter
	case string:
		n.Tag, n.Style, n.Value = "!!str", yaml.DoubleQuotedStyle, t
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(t)
	case json.Number:
		if n.Tag, n.Value = "!!int", t.String(); strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	}
	return n
}
