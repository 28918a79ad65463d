package descriptors

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// levelMatch decodes the match of a descriptor. ok is false after a mistake.
func (t *tree) levelMatch(fs fields, l *Level) (ok bool) {
	at, given := fs.get("match")
	if !given {
		return true
	}
	if beside, both := fs.get("value"); both {
		t.fail(at, "stands beside value%s: must be one of the two", line(" in line %d", beside.line))
		return false
	}
	m := t.match(at)
	if m == nil {
		return false
	}
	if n := m.alternatives(); n > maxAlternatives {
		t.fail(at, "has %d patterns in any_of, must have at most %d together: put descriptors side by side for more", n, maxAlternatives)
		return false
	}
	if !t.takes(at, m.bytes(), t.patterns, "patterns take too much memory") {
		return false
	}
	if l.ShareThreshold && m.joins {
		t.fail(at, "has counts of its own and stands beside share_threshold: must be one of the two")
		return false
	}
	l.Value, l.Match = m.text, m
	return true
}

// match decodes a map with one form; nil after a mistake.
func (t *tree) match(v value) *Matcher {
	if v.node.Kind != yaml.MappingNode && !t.beyond(v) {
		must := "such as " + cmp.Or(meantForm(v.node.Value), "{prefix: /api/}") + ": a text stands under value"
		if v.node.Kind == yaml.SequenceNode {
			must = "such as {any_of: [a, b]} for one of several values"
		}
		t.fail(v, "is %s, must be a map with one form, %s", kind(v), must)
		return nil
	}
	before := len(t.errs)
	fs, ok := t.fields(v, matchForm)
	if !ok || len(t.errs) > before {
		return nil
	}
	var forms []string
	for i := range fs {
		if fs[i].key != "count_by" && fs[i].key != "group_by" {
			forms = append(forms, fs[i].key)
		}
	}
	if len(forms) != 1 {
		has := "no form"
		if len(forms) > 1 {
			has = strings.Join(forms, " and ")
		}
		t.fail(v, "has %s, must have exactly one of %s: several patterns stand in any_of", has, matchForms)
		return nil
	}
	at, _ := fs.get(forms[0])
	if beside := t.misplaced(fs, forms[0]); beside {
		return nil
	}
	switch forms[0] {
	case "prefix":
		return t.prefix(at)
	case "path":
		return t.path(at, fs)
	case "cidr", "cidr_file":
		return t.cidrOf(at, forms[0], fs)
	case "regex":
		return t.regex(at)
	case "not":
		return t.not(at)
	default:
		return t.anyOf(at)
	}
}

const matchForms = "prefix, regex, path, cidr, cidr_file, not and any_of"

// misplaced records an option of another form.
func (t *tree) misplaced(fs fields, form string) (found bool) {
	if at, given := fs.get("count_by"); given && form != "path" {
		t.fail(at, "stands beside %s: only a path has variables to count by", form)
		found = true
	}
	if at, given := fs.get("group_by"); given && form != "cidr" && form != "cidr_file" {
		t.fail(at, "stands beside %s: only cidr and cidr_file have subnets to count by", form)
		found = true
	}
	return found
}

// patternText is text for the value of a form.
func (t *tree) patternText(v value, form string) (string, bool) {
	if v.node.Kind == yaml.SequenceNode && !t.beyond(v) {
		t.fail(v, "is a list, must be text: one of several is {any_of: [{%s: …}, {%s: …}]}", form, form)
		return "", false
	}
	return t.text(v)
}

// path decodes a path template, and count_by beside it.
func (t *tree) path(v value, fs fields) *Matcher {
	text, ok := t.patternText(v, "path")
	if !ok {
		return nil
	}
	made, mistake := newTemplate(text)
	if mistake != "" {
		t.fail(v, "%s", mistake)
		return nil
	}
	for segment := range strings.SplitSeq(text, "/") {
		if name := foreignVariable(segment); name != "" {
			t.warn(v, v.line, "has the plain segment %s: probably {%s} is meant", segment, name)
		}
	}
	m := &Matcher{kind: pathMatcher, path: made, joins: true, text: "{path: " + written(text)}
	m.program = made.program()
	at, given := fs.get("count_by")
	if given && !t.countBy(at, m) {
		return nil
	}
	m.text += "}"
	return m
}

// countBy decodes the variables that a path counts by: a name, or a list of names.
func (t *tree) countBy(v value, m *Matcher) (ok bool) {
	items := []value{v}
	if v.node.Kind == yaml.SequenceNode {
		items = t.items(v, "a list of variables")
	}
	before := len(t.errs)
	for _, item := range items {
		name, isText := t.text(item)
		i := slices.Index(m.path.names, strings.Trim(name, "{}"))
		switch {
		case !isText:
		case i < 0 && len(m.path.names) == 0:
			t.fail(item, "is %s, but the path has no variable, such as {id}", quote(name))
		case i < 0:
			t.fail(item, "is %s, must be a variable of the path: %s", quote(name), strings.Join(m.path.names, ", "))
		default:
			m.path.counted[i] = true
		}
	}
	if len(items) == 0 && !t.stopped {
		t.fail(v, "is empty, must have at least one variable of the path")
	}
	var names []string
	for i, name := range m.path.names {
		if m.path.counted[i] {
			names = append(names, written(name))
		}
	}
	m.text += ", count_by: [" + strings.Join(names, ", ") + "]"
	return len(t.errs) == before
}

func (t *tree) prefix(v value) *Matcher {
	prefix, ok := t.patternText(v, "prefix")
	switch {
	case !ok:
		return nil
	case prefix == "":
		t.fail(v, "is empty, must be the beginning of a value: for all values leave match out")
		return nil
	case strings.HasSuffix(prefix, "*"):
		t.warn(v, v.line, "ends in `*`, a plain character here: probably {prefix: %s} is meant", written(strings.TrimRight(prefix, "*")))
	}
	return newPrefix(prefix)
}

// regex decodes a regular expression, for whole values.
func (t *tree) regex(v value) *Matcher {
	expression, ok := t.patternText(v, "regex")
	if !ok {
		return nil
	}
	if expression == "" || len(expression) > maxRegexBytes {
		t.fail(v, "has %d bytes, must be a regular expression of 1 to %d", len(expression), maxRegexBytes)
		return nil
	}
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		t.fail(v, "is %s, %s", quote(expression), regexMistake(err))
		return nil
	}
	t.checkRegex(v, expression, parsed)
	size := 0
	compiled, err := syntax.Compile(parsed.Simplify())
	if err == nil {
		size = len(compiled.Inst)
	}
	if size > maxRegexSize {
		t.fail(v, "has %d instructions once compiled, must have at most %d: a repetition such as {50} counts 50 times", size, maxRegexSize)
		return nil
	}
	m := &Matcher{text: "{regex: " + written(expression) + "}", kind: regexMatcher, size: size, program: newExpression(parsed)}
	if m.program != "" {
		return m
	}
	inner, innerErr := regexp.Compile(expression)
	if m.regex, err = regexp.Compile(`\A(?:` + parsed.String() + `)\z`); err != nil || innerErr != nil { // which Parse would have reported
		t.fail(v, "is %s, must be a regular expression", quote(expression))
		return nil
	}
	prefix, _ := inner.LiteralPrefix()
	m.program = program(appendStep(appendTextStep(nil, textStep, prefix), moreStep, ""))
	return m
}

// regexMistake words an error of the parser of regular expressions.
func regexMistake(err error) string {
	wrong, ok := errors.AsType[*syntax.Error](err)
	if !ok {
		return err.Error()
	}
	is := fmt.Sprintf("%s: %s", wrong.Code, quote(wrong.Expr))
	switch {
	case wrong.Code == syntax.ErrInvalidPerlOp || strings.HasPrefix(wrong.Expr, "(?"):
		is += ". RE2 has no look-around: {not: …} matches the values that a pattern does not match"
	case wrong.Code == syntax.ErrInvalidEscape && len(wrong.Expr) == 2 && strings.ContainsAny(wrong.Expr, "123456789"):
		is += ". RE2 has no back-references"
	case wrong.Code == syntax.ErrMissingRepeatArgument:
		is += ". A glob such as *.png is a text under value"
	}
	return "must be a regular expression of RE2: " + is
}

// pattern decodes a pattern in any_of or not: a map with one form, or a text as under value.
func (t *tree) pattern(v value) *Matcher {
	if v.node.Kind != yaml.ScalarNode || t.beyond(v) {
		return t.match(v)
	}
	text, ok := t.text(v)
	switch {
	case !ok:
		return nil
	case isNull(v):
		t.fail(v, "is empty, must be a text or a map with one form, such as {prefix: /api/}")
		return nil
	}
	t.checkValue(v, text, "")
	return newTextMatcher(text)
}

func (t *tree) not(v value) *Matcher {
	if v.node.Kind == yaml.SequenceNode {
		t.fail(v, "is a list, must be one pattern: not one of several values is {not: {any_of: […]}}")
		return nil
	}
	of := t.pattern(v)
	if of == nil {
		return nil
	}
	return &Matcher{
		text: "{not: " + of.text + "}", kind: notMatcher, parts: []*Matcher{of}, size: of.size,
		program: program(appendStep(nil, notStep, "")) + of.program,
	}
}

func (t *tree) anyOf(v value) *Matcher {
	if v.node.Kind != yaml.SequenceNode || len(v.node.Content) == 0 {
		t.fail(v, "is %s, must be a list of texts and patterns, such as [GET, {prefix: P}]", emptyOr(v))
		return nil
	}
	m := &Matcher{kind: anyMatcher}
	ok := true
	var texts []string
	for item := range t.each(v, "a list of texts and patterns") {
		if len(m.parts) > maxAlternatives {
			break // which levelMatch refuses
		}
		p := t.pattern(item)
		if p == nil {
			ok = false
			continue
		}
		m.parts, m.size, m.joins = append(m.parts, p), m.size+p.size, m.joins || p.joins
		texts = append(texts, p.text)
	}
	if !ok || len(m.parts) == 0 {
		return nil
	}
	m.text = "{any_of: [" + strings.Join(texts, ", ") + "]}"
	m.program = eitherProgram(m.parts)
	return m
}

// emptyOr describes a value, and a list without elements as empty.
func emptyOr(v value) string {
	if v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0 {
		return "empty"
	}
	return kind(v)
}

// written returns a text as it stands in a map of one line of YAML.
func written(text string) string {
	if isPlain(text) {
		return text
	}
	printable := strings.Trim(strings.ToValidUTF8(text, "\x00"), "\t") == text && !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
	if printable && strings.ContainsAny(text, `"\\`) {
		return "'" + strings.ReplaceAll(text, "'", "''") + "'"
	}
	return strconv.Quote(text)
}

// isPlain reports whether a text needs no quotes in a map of one line.
func isPlain(text string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	switch strings.ToLower(text) {
	case "", "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		return false
	}
	if strings.Trim(text, letters+"0123456789/_.*+-:() ^$") != "" || strings.Contains(text, ": ") {
		return false
	}
	first, last := text[:1], text[len(text)-1:]
	isRange := strings.Contains("0123456789", first) && strings.Contains(text, "/")
	return (strings.Contains(letters+"/^(", first) || isRange) && last != ":" && last != " "
}
