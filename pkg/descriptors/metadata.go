package descriptors

import (
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// metadata decodes a map of anything that JSON knows; nil for null.
func (t *tree) metadata(v value) map[string]any {
	if isNull(v) {
		return nil
	}
	m, _ := t.jsonMap(v).(map[string]any)
	return m
}

// json turns a value into nil, bool, float64, string, []any or map[string]any.
func (t *tree) json(v value) any {
	switch {
	case t.beyond(v):
		return nil
	case v.node.Kind == yaml.MappingNode:
		return t.jsonMap(v)
	case v.node.Kind == yaml.SequenceNode:
		list := []any{}
		for item := range t.each(v, "a list") {
			list = append(list, t.json(item))
		}
		return list
	}
	if is, ok := truth(v.node); ok {
		return is
	}
	switch v.node.ShortTag() {
	case "!!null":
		return nil
	case "!!int", "!!float":
		return t.jsonNumber(v)
	default:
		s, _ := t.text(v)
		return s
	}
}

func (t *tree) jsonMap(v value) any {
	all, ok := t.pairs(v)
	if !ok {
		return nil
	}
	m := make(map[string]any, len(all))
	for _, f := range all {
		m[f.key] = t.json(f.value)
	}
	return m
}

// jsonNumber returns a number as JSON has them, which know no infinity.
func (t *tree) jsonNumber(v value) any {
	text := strings.ReplaceAll(v.node.Value, "_", "")
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return float64(n)
	}
	if n, err := strconv.ParseUint(text, 0, 64); err == nil {
		return float64(n)
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
		t.fail(v, "is %s, must be a finite number", kind(v))
		return nil
	}
	return n
}
