package descriptors

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

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
