package descriptors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// toNode turns a decoded value into what the parser would have made of it, without lines. A float that is a whole number
// counts as an integer, for decoders of JSON know no other numbers. Values of other types become their text. Below the
// bound of depth there is nothing.
func toNode(v any, depth int) *yaml.Node {
	scalar := func(tag, text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text} }
	text := func(s string) *yaml.Node {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: s}
	}
	if depth > 2*maxDepth {
		return scalar("!!null", "")
	}
	switch v := v.(type) {
	case nil:
		return scalar("!!null", "")
	case string:
		return text(v)
	case bool:
		return scalar("!!bool", strconv.FormatBool(v))
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return scalar("!!int", fmt.Sprint(v))
	case float32:
		return toNode(float64(v), depth)
	case float64:
		if v == math.Trunc(v) {
			return scalar("!!int", strconv.FormatFloat(v, 'f', -1, 64))
		}
		return scalar("!!float", strconv.FormatFloat(v, 'g', -1, 64))
	case json.Number:
		if _, err := v.Int64(); err == nil {
			return scalar("!!int", v.String())
		}
		return scalar("!!float", v.String())
	case map[string]any:
		return mapNode(v, depth)
	case []any:
		return listNode(v, depth)
	case []map[string]any:
		return listNode(v, depth)
	default:
		return text(fmt.Sprint(v))
	}
}

// mapNode turns a map into a node, sorted by key so that messages come in the same order every time.
func mapNode(m map[string]any, depth int) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, toNode(m[key], depth+1))
	}
	return n
}

func listNode[T any](list []T, depth int) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, v := range list {
		n.Content = append(n.Content, toNode(v, depth+1))
	}
	return n
}

// plainJSON replaces in a JSON document the two escapes that YAML does not have: `\/`, and two `\u` for one character (one of
// them alone becomes U+FFFD). Lines stay as they are. Anything but JSON is returned as it is.
func plainJSON(data []byte) []byte {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) || !bytes.ContainsRune(data, '\\') || !json.Valid(data) {
		return data
	}
	plain := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			plain = append(plain, data[i])
			continue
		}
		// Outside of texts JSON has no backslash, and none at its end.
		if unit := escaped(data[i:]); utf16.IsSurrogate(unit) {
			r := utf16.DecodeRune(unit, escaped(data[min(i+6, len(data)):]))
			plain = utf8.AppendRune(plain, r)
			if i += 5; r != utf8.RuneError {
				i += 6
			}
			continue
		}
		if i++; data[i] != '/' {
			plain = append(plain, '\\')
		}
		plain = append(plain, data[i])
	}
	return plain
}

// escaped returns the UTF-16 unit of the `\u` escape that the data begin with, -1 when they don't.
func escaped(data []byte) rune {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(data[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}
