package descriptors

import (
	"fmt"
	"slices"
	"strings"
)

// checkBlanks warns about blanks around a text that requests must equal.
func (t *tree) checkBlanks(at value, text string) {
	if plain := strings.TrimSpace(text); plain != text {
		t.warn(at, at.line, "has blanks around it, which a request must send too: probably %s is meant", quote(plain))
	}
}

// checkValue warns about a value of a key that looks like a pattern: only `*` has a meaning. The
// key is "" for a text in a pattern.
func (t *tree) checkValue(at value, text, key string) {
	t.checkBlanks(at, text)
	form := meantForm(text)
	switch exact, isExact := strings.CutPrefix(text, "= /"); {
	case isExact:
		t.warn(at, at.line, "has the = of nginx, which a request must send too: probably /%s is meant", exact)
	case form == "" || len(text) > maxRegexBytes:
	case key == maskedAddress && looksLikeRange(text):
	case key == "":
		t.warn(at, at.line, "is compared as text: only `*` stands for other text. Perhaps %s is meant", form)
	default:
		t.warn(at, at.line, "is compared as text: only `*` stands for other text. Perhaps match: %s is meant, in place of value", form)
	}
}

// maskedAddress is the key of Envoy's action of that name. The values are ranges.
const maskedAddress = "masked_remote_address"

// meantForm returns the form of a match that the author of a value probably meant, "" for none.
func meantForm(text string) string {
	negated, isNegated := strings.CutPrefix(text, "!")
	expression, mark := withoutMarks(text)
	switch words := alternatives(text); {
	case strings.HasPrefix(text, "^~ "): // of nginx
		return "{prefix: " + written(strings.TrimSpace(text[2:])) + "}"
	case mark != "":
		return "{regex: " + written(searching(expression)) + "}"
	case looksLikeRange(text):
		return "{cidr: [" + written(text) + "]}"
	case looksLikeTemplate(text):
		return "{path: " + written(namedVariables(text)) + "}"
	case isNegated && isWord(negated):
		return "{not: " + written(negated) + "}"
	case len(words) > 1:
		for i := range words {
			words[i] = written(words[i])
		}
		return "{any_of: [" + strings.Join(words, ", ") + "]}"
	case looksLikeRegex(text):
		return "{regex: " + written(wholeRegex(text)) + "}"
	case looksLikeGlob(text):
		return fmt.Sprintf("{regex: %s}", written(globRegex(text)))
	}
	return ""
}

func looksLikeRange(value string) bool {
	address, bits, ok := strings.Cut(value, "/")
	return ok && bits != "" && len(bits) <= 3 && strings.Trim(bits, "0123456789") == "" &&
		strings.Trim(address, "0123456789abcdefABCDEF.:") == "" && (strings.Count(address, ".") == 3 || strings.Count(address, ":") > 1)
}

// looksLikeRegex reports a part that is frequent in regular expressions and rare elsewhere.
func looksLikeRegex(value string) bool {
	parts := []string{`\d`, `\w`, `\s`, `\.`, `\/`, "/.*", ".+", "]+", ")+", "[0-9", "[a-z", "[A-Z", "[^", "(?"}
	_, inBrackets, opens := strings.Cut(value, "(")
	bar, closes := strings.IndexByte(inBrackets, '|'), strings.IndexByte(inBrackets, ')')
	return strings.HasPrefix(value, "^") || len(value) > 1 && strings.HasSuffix(value, "$") || opens && bar > 0 && closes > bar ||
		slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(value, p) })
}

// looksLikeTemplate reports a path with a segment such as {id}, :id, <id> or [id].
func looksLikeTemplate(value string) bool {
	named := namedVariables(value)
	if !strings.Contains(named, "/{") {
		return false
	}
	_, mistake := newTemplate(named)
	return mistake == ""
}

// namedVariables writes each segment of a path that is a variable in other tools as {id}.
func namedVariables(path string) string {
	if !strings.Contains(path, "/:") && !strings.Contains(path, "/<") && !strings.Contains(path, "/[") {
		return path
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if name := foreignVariable(s); name != "" {
			segments[i] = "{" + name + "}"
		}
	}
	return strings.Join(segments, "/")
}

// foreignVariable returns the name of a variable that other tools write as :id, <id>, <int:id> or
// [id]; "" for another segment.
func foreignVariable(segment string) string {
	name, ok := strings.CutPrefix(segment, ":")
	for _, pair := range [...]string{"<>", "[]"} {
		if inner, opens := strings.CutPrefix(segment, pair[:1]); opens {
			name, ok = strings.CutSuffix(inner, pair[1:])
			ok = ok && !strings.Contains(name, "-") // [a-z]
		}
	}
	if _, typed, is := strings.Cut(name, ":"); is {
		name = typed
	}
	if !ok || !isName(name) {
		return ""
	}
	return name
}

// alternatives returns the words of a text such as `GET, POST` or `(GET|POST)`; nil for others.
func alternatives(text string) []string {
	separator := ","
	if inner, ok := strings.CutPrefix(text, "("); ok {
		if inner, ok = strings.CutSuffix(inner, ")"); !ok {
			return nil
		}
		text, separator = inner, "|"
	} else if strings.Contains(text, "|") {
		separator = "|"
	}
	words := strings.Split(text, separator)
	if len(words) == 1 || len(words) > maxAlternatives {
		return nil
	}
	for i := range words {
		if words[i] = strings.TrimSpace(words[i]); !isWord(words[i]) {
			return nil
		}
	}
	return words
}

// isWord reports whether a text is one word, without the marks of a pattern.
func isWord(text string) bool {
	return text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") == ""
}

// looksLikeGlob reports a `?` that is not the beginning of a query.
func looksLikeGlob(value string) bool {
	return strings.Trim(value, "?") != "" && strings.Contains(value, "?") && !strings.ContainsAny(value, "/=&: ")
}

// globRegex writes a glob as a regular expression.
func globRegex(glob string) string {
	return strings.NewReplacer("?", ".", "*", ".*", ".", `\.`, "+", `\+`, "(", `\(`, ")", `\)`, "[", `\[`, "{", `\{`).Replace(glob)
}

// meantKey says how to write an unknown key of some forms, "" where nothing is known.
func meantKey(f form, key string) string {
	plain := strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(key))
	switch f {
	case descriptorForm, matchForm:
		return meantPattern(plain, f == descriptorForm)
	case scheduleForm:
		return meantTime(plain)
	case overlayForm:
		switch plain {
		case "match", "when", "where", "selector", "target", "filter":
			return "an entry has for and set, such as for: {domain: \"*\", path: [\"**\"]}"
		case "ratelimit", "words", "apply", "then", "limit":
			return "an entry has for and set, such as set: {algorithm: token_bucket, burst: 20}"
		}
	case selectorForm:
		switch plain {
		case "key", "value", "descriptor", "descriptors", "entries", "paths", "keys", "route":
			return "the entries are path: [a], or path: [{key: a, value: b}]"
		}
	default:
	}
	return ""
}

// meantTime is meantKey of a schedule.
func meantTime(key string) string {
	switch key {
	case "to", "till", "end", "ends", "before", "stop":
		return "the end is until: 2026-12-27, and hours of the day are hours: 09:00-18:00"
	case "start", "starts", "since", "after", "begin", "at", "date":
		return "the begin is from: 2026-12-24, and hours of the day are hours: 09:00-18:00"
	case "timezone", "tz", "location":
		return "a time zone is zone: Europe/Berlin"
	case "cron", "crontab", "day", "weekday", "weekdays", "dow", "daysofweek", "time", "times", "hour", "when":
		return "times are days: mon-fri and hours: 09:00-18:00"
	case "limit", "requests", "rate", "max", "maxrequests":
		return "a number is requests_per_unit: 200, and factor: 2 is two times the number of the limit"
	case "multiplier", "multiply", "scale", "percent":
		return "two times the number of the limit is factor: 2"
	}
	return ""
}

// meantPattern is meantKey of a match, and of a descriptor that has the form of a match itself.
func meantPattern(key string, outside bool) string {
	switch key {
	case "prefix", "regex", "path", "cidr", "cidrfile", "not": // right in a match
		if !outside {
			return ""
		}
	}
	switch key {
	case "values", "in", "oneof", "anyof", "or", "list":
		return "one of several values is match: {any_of: [a, b]}"
	case "not", "notin", "noneof", "notvalue", "except", "exclude", "notequals", "neq", "notmatch", "invert", "invertmatch":
		return "all other values are match: {not: a}, or {not: {any_of: [a, b]}}"
	case "suffix", "endswith", "suffixmatch":
		return "values that end in .png are value: \"*.png\""
	case "contains", "substring", "containsmatch", "glob", "wildcard":
		return "values with abc in them are value: \"*abc*\""
	case "exact", "equals", "exactmatch", "stringmatch":
		return "one value is value: a"
	case "prefix", "startswith", "prefixmatch", "pathprefix", "pathseparatedprefix":
		return "values that begin with /api/ are match: {prefix: /api/}"
	case "regex", "regexp", "saferegex", "saferegexmatch", "pattern", "re", "re2", "matches", "regularexpression", "valueregex", "regexmatch":
		return "a regular expression is match: {regex: \"a[0-9]+\"}"
	case "path", "pathtemplate", "template", "uri", "uritemplate", "route":
		return "a path with variables is match: {path: \"/api/{id}\"}"
	case "cidr", "cidrs", "ip", "ips", "range", "ranges", "subnet", "subnets", "iprange", "network", "networks", "sourceip", "remoteaddress",
		"addressprefix":
		return "ranges of addresses are match: {cidr: [10.0.0.0/8]}"
	case "cidrfile", "file", "rangesfile", "ipfile", "cidrsfile", "blocklist", "allowlist":
		return "a file of ranges is match: {cidr_file: ranges.txt}"
	case "and", "allof", "all":
		return "patterns cannot be joined by and: regex says more in one pattern, and descriptors below a descriptor match further entries"
	case "ignorecase", "caseinsensitive":
		return "text of any case is match: {regex: \"(?i)abc\"}"
	}
	return ""
}
