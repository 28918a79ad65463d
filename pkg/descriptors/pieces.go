package descriptors

import (
	"bytes"
	"iter"

	"go.yaml.in/yaml/v3"
)

// The parser makes a tree of all values of a document, which takes up to 35 times the memory of its
// text. So the list of the descriptors of a large document is parsed in pieces. The tree of a
// piece is dropped before the next one.

// pieceBytes is the length of a piece, but for its last item. A document below four times that
// length is parsed at once.
const pieceBytes = 64 << 10

// pieces is the list of the descriptors of a document, in pieces.
type pieces struct {
	first int     // line of the first piece
	parts []piece // not empty
}

type piece struct {
	data []byte
	line int // the number of lines before it
}

// split cuts the list of a document with the key descriptors into pieces of at least size bytes.
// rest is the document with an empty list, and with as many lines. The result is nil for a document
// that must be parsed at once.
func split(data []byte, size int) (rest []byte, p *pieces) {
	if len(data)/4 < size || bytes.IndexByte(data, '&') >= 0 { // an alias may repeat a value of another piece
		return nil, nil
	}
	p = new(pieces)
	indent, at, begin, number, found := -1, 0, 0, 0, false
	for line := range bytes.Lines(data) {
		number++
		text := bytes.TrimLeft(line, " ")
		column := len(line) - len(text)
		text = bytes.TrimRight(text, " \r\n")
		isItem := len(text) > 0 && text[0] == '-' && (len(text) == 1 || text[1] == ' ')
		switch {
		case len(text) == 0 || text[0] == '#':
		case !found:
			found = column == 0 && bytes.Equal(text, []byte("descriptors:"))
		case indent < 0: // the first value of the list
			if !isItem {
				return nil, nil
			}
			indent, begin, p.first = column, at, number
			p.parts = append(p.parts, piece{data[at:], number - 1})
		case column < indent || column == indent && !isItem:
			return p.without(data, begin, at, number-1), p
		case column == indent:
			if last := &p.parts[len(p.parts)-1]; len(last.data)-(len(data)-at) >= size {
				last.data = last.data[:len(last.data)-(len(data)-at)]
				p.parts = append(p.parts, piece{data[at:], number - 1})
			}
		}
		at += len(line)
	}
	if len(p.parts) == 0 {
		return nil, nil
	}
	return p.without(data, begin, at, number), p
}

// without ends the list at an index, behind that number of lines, and returns the document without
// the list from begin on.
func (p *pieces) without(data []byte, begin, end, lines int) []byte {
	last := &p.parts[len(p.parts)-1]
	last.data = last.data[:len(last.data)-(len(data)-end)]
	empty := bytes.Repeat([]byte("\n"), lines-p.first+1)
	return bytes.Join([][]byte{data[:begin], empty, data[end:]}, nil)
}

// parseInPieces returns the content of a large document without its list of descriptors, which
// descriptorsOf parses. The result is false for a document that must be parsed at once.
func (r *reader) parseInPieces(data []byte) (value, bool) {
	if r.source.Settings || r.source.Generated {
		return value{}, false
	}
	rest, p := split(data, r.piece)
	var doc yaml.Node
	if p == nil || decodeNode(rest, &doc) != nil || !lacksDescriptors(doc.Content[0]) {
		return value{}, false
	}
	r.pieces = p
	return r.root(&doc, rest, nil)
}

// lacksDescriptors reports whether a document has the key descriptors once, with an empty value.
func lacksDescriptors(n *yaml.Node) bool {
	found := 0
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "descriptors" {
			if found++; !isNull(value{node: n.Content[i+1]}) {
				return false
			}
		}
	}
	return found == 1
}

// items returns the items of the piece; nil after a mistake.
func (p *piece) items() []*yaml.Node {
	var doc yaml.Node
	if decodeNode(p.data, &doc) != nil || doc.Content[0].Kind != yaml.SequenceNode {
		return nil
	}
	return doc.Content[0].Content
}

// descriptorsOf yields the descriptors of the list v, and forgets their pieces. After a mistake of
// YAML in a piece the pieces stay: only a document that is parsed at once shows that mistake.
func (t *tree) descriptorsOf(v value) iter.Seq[value] {
	p := t.pieces
	if p == nil || v.place.parent != nil {
		return t.each(v, "a list of descriptors")
	}
	return func(yield func(value) bool) {
		n := 0
		for _, part := range p.parts {
			items := part.items()
			if items == nil {
				return
			}
			for _, item := range items {
				moveLines(item, part.line)
				if v := t.item(v, item, n); !t.stopped && !yield(v) {
					return
				}
				n++
			}
		}
		t.pieces = nil
	}
}

func moveLines(n *yaml.Node, lines int) {
	n.Line += lines
	for _, c := range n.Content {
		moveLines(c, lines)
	}
}
