package descriptors

import (
	"slices"
	"strings"
)

// template is a path with variables, such as /api/{id}/orders. A variable stands for one segment,
// which is not empty.
type template struct {
	texts   []string // around the variables: one more than there are variables
	names   []string // of the variables
	counted []bool   // by variable: paths with another text there count apart
}

// maxTemplate bounds the text of a path template, in bytes.
const maxTemplate = 1024

// newTemplate reads a path template. The mistake is "" without one.
func newTemplate(text string) (t *template, mistake string) {
	switch {
	case len(text) > maxTemplate:
		return nil, "is too long, must have at most 1024 bytes"
	case !strings.HasPrefix(text, "/"):
		return nil, "is " + quote(text) + ", must be a path that begins with /, such as /api/{id}/orders"
	case strings.ContainsAny(text, "?#"):
		return nil, "has a query, must be a path alone: a template matches a path with any query, and without one"
	}
	t = &template{texts: []string{""}}
	for segment := range strings.SplitSeq(text[1:], "/") {
		last := len(t.texts) - 1
		t.texts[last] += "/"
		name, opens := strings.CutPrefix(segment, "{")
		name, closes := strings.CutSuffix(name, "}")
		switch {
		case opens && closes && isName(name):
			if slices.Contains(t.names, name) {
				return nil, "has {" + name + "} twice: variables must differ"
			}
			t.names, t.texts, t.counted = append(t.names, name), append(t.texts, ""), append(t.counted, false)
		case strings.ContainsAny(segment, "{}"):
			return nil, "has the segment " + quote(segment) + ": a variable is a whole segment with a name in it, such as {id}. Other patterns are regex"
		case strings.Contains(segment, "*"):
			return nil, "has the segment " + quote(segment) + ": one segment is {name}. All paths below /files are {prefix: /files/}"
		default:
			t.texts[last] += segment
		}
	}
	return t, ""
}

// isName reports whether a text can be the name of a variable.
func isName(text string) bool {
	return text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// withoutQuery returns a path up to its query.
func withoutQuery(path string) string {
	before, _, _ := strings.Cut(path, "?")
	return before
}

// next cuts a text and the variable after it off a matching path.
func (t *template) next(i int, path string) (variable, rest string) {
	path = strings.TrimPrefix(path, t.texts[i])
	end := strings.IndexByte(path, '/')
	if end < 0 {
		end = len(path)
	}
	return path[:end], path[end:]
}

// program returns the program for paths. The query has no effect.
func (t *template) program() program {
	p := appendStep(appendStep(nil, textStep, t.texts[0]), queryStep, "")
	for _, text := range t.texts[1:] {
		p = appendTextStep(appendStep(p, segmentStep, ""), textStep, text)
	}
	return program(p)
}

// appendCounted appends the template with the counted variables of a matching path in it.
func (t *template) appendCounted(dst []byte, path string) []byte {
	path = withoutQuery(path)
	for i := range t.texts {
		var variable string
		variable, path = t.next(i, path)
		dst = append(dst, t.texts[i]...)
		switch {
		case i == len(t.names):
		case t.counted[i]:
			dst = append(dst, variable...)
		default:
			dst = append(append(append(dst, '{'), t.names[i]...), '}')
		}
	}
	return dst
}

// why returns the variables of a matching path, such as `id=7`.
func (t *template) why(path string) string {
	path = withoutQuery(path)
	var all []string
	for i, name := range t.names {
		var variable string
		variable, path = t.next(i, path)
		all = append(all, name+"="+variable)
	}
	return strings.Join(all, ", ")
}

// covers reports whether t matches every path that o matches.
func (t *template) covers(o *template) bool {
	mine, others := t.segments(), o.segments()
	return slices.EqualFunc(mine, others, func(a, b string) bool { return a == b || a == anySegment && b != "" })
}

// anySegment stands for a variable. No segment of a path has this text.
const anySegment = "/"

func (t *template) segments() []string {
	all := strings.Split(strings.Join(t.texts, "\x00"), "/")
	for i := range all {
		if all[i] == "\x00" {
			all[i] = anySegment
		}
	}
	return all
}
