package descriptors

import (
	"regexp/syntax"
	"strings"
)

// checkRegex warns about a regular expression that looks like one of another tool, and means
// something else here, or nothing.
func (t *tree) checkRegex(v value, expression string, parsed *syntax.Regexp) {
	inner, mark := withoutMarks(expression)
	whole := wholeRegex(inner)
	switch {
	case mark != "":
		t.warn(v, v.line, "has %s, which a value must have too: probably {regex: %s} is meant", mark, written(searching(inner)))
	case parsed.Op == syntax.OpLiteral && string(parsed.Rune) == expression:
		t.warn(v, v.line, "has no special character, so it matches this text alone: values that begin so are {prefix: %s}", written(expression))
	case strings.Contains(expression, "/*"):
		t.warn(v, v.line, "repeats a slash: probably {regex: %s} is meant", written(strings.ReplaceAll(expression, "/*", "/.*")))
	case whole != inner:
		t.warn(v, v.line, "matches whole values, and has only one of ^ and $: probably {regex: %s} is meant", written(whole))
	}
}

// withoutMarks removes the marks that other tools put around a regular expression: the `~` and `~*`
// of nginx, and slashes with flags. mark names them, "" for none.
func withoutMarks(text string) (expression, mark string) {
	if rest, ok := strings.CutPrefix(text, "~"); ok && rest != "" && strings.Contains("^*/\\ ", rest[:1]) {
		rest, ignoresCase := strings.CutPrefix(rest, "*")
		return flagged(strings.TrimSpace(rest), ignoresCase), "the ~ of nginx"
	}
	inner, opens := strings.CutPrefix(text, "/")
	end := strings.LastIndexByte(inner, '/')
	if !opens || end < 1 || inner[end-1] == '\\' {
		return text, ""
	}
	flags := inner[end+1:]
	inner = inner[:end]
	isDelimited := strings.HasPrefix(inner, "^") || strings.HasSuffix(inner, "$") || strings.Contains(inner, `\/`)
	if !isDelimited || strings.Trim(flags, "gimsuxy") != "" {
		return text, "" // a path
	}
	return flagged(strings.ReplaceAll(inner, `\/`, "/"), strings.Contains(flags, "i")), "slashes around it"
}

// flagged returns an expression, and one that ignores case.
func flagged(expression string, ignoresCase bool) string {
	if ignoresCase {
		return "(?i)" + expression
	}
	return expression
}

// wholeRegex returns the expression for whole values of an expression that has only one of `^` and
// `$`. Other tools look for an expression anywhere in a value. Other expressions stay.
func wholeRegex(expression string) string {
	_, plain := cutFlag(expression)
	begins, ends := anchors(plain)
	switch {
	case begins == ends:
	case begins && !endsOpen(plain), ends && strings.Trim(plain[:1], `/.(`) != "":
		return searching(expression)
	}
	return expression
}

// searching returns the expression for whole values that finds another one anywhere in a value.
func searching(expression string) string {
	flag, plain := cutFlag(expression)
	begins, ends := anchors(plain)
	if hasAlternatives(plain) && !(begins && ends) {
		plain = "(" + plain + ")"
	}
	if !begins && !strings.HasPrefix(plain, ".*") {
		plain = ".*" + plain
	}
	if !ends && !endsOpen(plain) {
		plain += ".*"
	}
	return flag + plain
}

// hasAlternatives reports a `|` outside of parentheses, sets of characters and escapes.
func hasAlternatives(expression string) bool {
	depth, inSet := 0, false
	for i := 0; i < len(expression); i++ {
		switch c := expression[i]; {
		case c == '\\':
			i++
		case inSet:
			inSet = c != ']'
		case c == '[':
			inSet = true
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			return true
		}
	}
	return false
}

// cutFlag cuts (?i) off an expression.
func cutFlag(expression string) (flag, plain string) {
	const ignoresCase = "(?i)"
	if plain, ok := strings.CutPrefix(expression, ignoresCase); ok && plain != "" {
		return ignoresCase, plain
	}
	return "", expression
}

// anchors reports whether an expression begins with `^`, and ends with `$`.
func anchors(expression string) (begins, ends bool) {
	return strings.HasPrefix(expression, "^"), strings.HasSuffix(expression, "$") && !strings.HasSuffix(expression, `\$`)
}

// endsOpen reports whether an expression ends with any characters.
func endsOpen(expression string) bool {
	return strings.HasSuffix(expression, ".*") || strings.HasSuffix(expression, ".+")
}
