package descriptors

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

func isNull(v value) bool { return v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!null" }

// isText reports whether a scalar is text to YAML: quoted, or nothing else. Dates are, as for the
// reference.
func isText(n *yaml.Node) bool {
	switch n.ShortTag() {
	case "!!null", "!!bool", "!!int", "!!float", "!!binary":
		return false
	default: // !!str, !!timestamp, !!merge, somebody's own
		return true
	}
}

// kind describes a value, for "is …, must be …".
func kind(v value) string {
	tag := v.node.ShortTag()
	switch {
	case v.node.Kind == yaml.MappingNode:
		return "a map"
	case v.node.Kind == yaml.SequenceNode:
		return "a list"
	case tag == "!!null":
		return "empty"
	case tag == "!!int":
		return "the number " + clip(v.node.Value)
	case tag == "!!float":
		return "the floating-point number " + clip(v.node.Value)
	case tag == "!!bool":
		return "the boolean " + clip(v.node.Value)
	case tag == "!!binary":
		return "binary data"
	default:
		return "the text " + quote(v.node.Value)
	}
}

// clip shortens a number, which can be written in very many digits.
func clip(s string) string {
	if q := quote(s); len(q) != len(s)+2 {
		return q
	}
	return s
}

// text returns a text; "" for null. Like the reference, text takes whole numbers and booleans
// without quotes as they are written, and refuses a float: 1.10 and 1.1 are one number and two
// texts.
func (r *reader) text(v value) (string, bool) {
	switch {
	case r.beyond(v):
		return "", false
	case v.node.Kind != yaml.ScalarNode:
		r.fail(v, "is %s, must be text", kind(v))
		return "", false
	case isText(v.node):
		return v.node.Value, true
	}
	switch v.node.ShortTag() {
	case "!!null":
		return "", true
	case "!!int", "!!bool":
		return v.node.Value, true
	case "!!binary":
		var s string
		if err := v.node.Decode(&s); err == nil && utf8.ValidString(s) {
			return s, true
		}
		r.fail(v, "is binary data that is not UTF-8, must be text")
		return "", false
	}
	r.fail(v, "is %s, must be text: put it in quotes", kind(v))
	return "", false
}

// boolean returns a boolean; false for null.
func (r *reader) boolean(v value) bool {
	is, ok := truth(v.node)
	switch {
	case ok || r.beyond(v) || isNull(v):
	case v.node.Kind == yaml.ScalarNode && isText(v.node) && (v.node.Value == "true" || v.node.Value == "false"):
		r.fail(v, "is %s, must be true or false without quotes", kind(v))
	default:
		r.fail(v, "is %s, must be true or false", kind(v))
	}
	return is
}

// truth returns a boolean; ok is false for any other value. Without quotes, the words of YAML 1.1
// are booleans too, as for the reference.
func truth(n *yaml.Node) (is, ok bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" && (n.ShortTag() != "!!str" || n.Style != 0) {
		return false, false
	}
	switch n.Value {
	case "true", "True", "TRUE", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
		return true, true
	case "false", "False", "FALSE", "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return false, true
	default:
		return false, false
	}
}

// count returns a whole number from lowest to 2^32-1.
func (r *reader) count(v value, lowest int64) (uint32, bool) {
	if r.beyond(v) {
		return 0, false
	}
	scalar := v.node.Kind == yaml.ScalarNode
	number := scalar && v.node.ShortTag() == "!!int"
	n, err := strconv.ParseInt(strings.ReplaceAll(v.node.Value, "_", ""), 0, 64)
	if number && err == nil && n >= lowest && n <= math.MaxUint32 {
		return uint32(n), true
	}
	is, quotes := kind(v), ""
	switch {
	case number:
		is = clip(v.node.Value)
	case scalar && isText(v.node) && strings.Trim(v.node.Value, "0123456789") == "":
		quotes = ", without quotes"
	}
	r.fail(v, "is %s, must be a whole number from %d to %d%s", is, lowest, uint32(math.MaxUint32), quotes)
	return 0, false
}
