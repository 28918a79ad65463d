package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// sentence is one sentence of a text, and the line on which its paragraph begins.
type sentence struct {
	line int
	text string
}

// sentences returns the sentences of a file; none for a kind of file that holds no prose.
func sentences(file string, text []byte) []sentence {
	switch name := filepath.Base(file); {
	case strings.HasSuffix(name, ".go"):
		return ofGo(file, text)
	case strings.HasSuffix(name, ".md"):
		return ofMarkdown(string(text))
	case strings.HasSuffix(name, ".lua"):
		return ofLines(string(text), "--")
	case strings.HasSuffix(name, ".proto"):
		return ofLines(string(text), "//")
	case name == "Makefile", name == "Dockerfile", name == "run", strings.HasSuffix(name, ".sh"),
		strings.HasSuffix(name, ".yaml"), strings.HasSuffix(name, ".yml"):
		return ofLines(string(text), "#")
	default:
		return nil
	}
}

// ofGo returns the sentences of comments, and of string literals outside tests.
func ofGo(file string, text []byte) []sentence {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.ParseComments)
	if err != nil {
		return nil // the compiler reports the error
	}
	var all []sentence
	for _, group := range parsed.Comments {
		var lines []string
		for _, c := range group.List {
			body := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), "/*"), "*/")
			if strings.HasPrefix(c.Text, "//go:") || strings.HasPrefix(body, "\t") || strings.HasPrefix(strings.TrimSpace(body), "Output:") {
				body = "" // a directive, or code
			}
			if before, reason, found := strings.Cut(body, "nolint:"); found {
				_, body, _ = strings.Cut(reason, "//")
				body = before + body
			}
			lines = append(lines, body)
		}
		all = append(all, split(set.Position(group.Pos()).Line, lines)...)
	}
	if strings.HasSuffix(file, "_test.go") {
		return all
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if _, is := n.(*ast.ImportSpec); is {
			return false
		}
		literal, is := n.(*ast.BasicLit)
		if !is || literal.Kind != token.STRING {
			return true
		}
		if value, err := strconv.Unquote(literal.Value); err == nil && len(strings.Fields(value)) >= 4 {
			all = append(all, split(set.Position(literal.Pos()).Line, strings.Split(value, "\n"))...)
		}
		return true
	})
	return all
}

// ofLines returns the sentences of comments that begin with a mark.
func ofLines(text, mark string) []sentence {
	var all []sentence
	var lines []string
	start := 0
	flush := func() {
		all = append(all, split(start, lines)...)
		lines = nil
	}
	for i, line := range strings.Split(text, "\n") {
		code, body, found := strings.Cut(" "+line, " "+mark)
		if !found || strings.HasPrefix(body, "!") {
			flush()
			continue
		}
		if strings.TrimSpace(code) != "" {
			flush()
		}
		if len(lines) == 0 {
			start = i + 1
		}
		lines = append(lines, strings.TrimLeft(body, mark))
		if strings.TrimSpace(code) != "" {
			flush()
		}
	}
	flush()
	return all
}

// ofMarkdown returns the sentences of prose, without code blocks. Each cell of a table is a
// paragraph.
func ofMarkdown(text string) []sentence {
	var all []sentence
	var lines []string
	start, fenced := 0, false
	flush := func() {
		all = append(all, split(start, lines)...)
		lines = nil
	}
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fenced = !fenced
			flush()
		case fenced:
		case trimmed == "", strings.HasPrefix(trimmed, "#"), strings.HasPrefix(trimmed, "<"):
			flush()
		case strings.HasPrefix(trimmed, "|"):
			flush()
			for cell := range strings.SplitSeq(trimmed, "|") {
				all = append(all, split(i+1, []string{cell})...)
			}
		default:
			if strings.HasPrefix(trimmed, "- ") || strings.HasPrefix(trimmed, "* ") || item.MatchString(trimmed) {
				flush()
				trimmed = strings.TrimLeft(item.ReplaceAllString(trimmed, ""), "-* ")
			}
			if len(lines) == 0 {
				start = i + 1
			}
			lines = append(lines, trimmed)
		}
	}
	flush()
	return all
}

var (
	item = regexp.MustCompile(`^\d+\. `)
	code = regexp.MustCompile("`[^`]*`")
	link = regexp.MustCompile(`\]\([^)]*\)`)
	end  = regexp.MustCompile(`[.!?]["')*_]*\s+`)
)

// split returns the sentences of a paragraph's lines. An empty line ends a paragraph. Code and
// links count as one word.
func split(line int, lines []string) []sentence {
	var all []sentence
	for paragraph := range strings.SplitSeq(strings.Join(trim(lines), "\n"), "\n\n") {
		text := strings.Join(strings.Fields(paragraph), " ")
		text = link.ReplaceAllString(code.ReplaceAllString(text, "X"), "]")
		for text != "" {
			at := end.FindStringIndex(text)
			one := text
			if at == nil {
				text = ""
			} else {
				one, text = text[:at[1]], text[at[1]:]
			}
			if one = strings.TrimSpace(one); len(strings.Fields(one)) > 1 {
				all = append(all, sentence{line, one})
			}
		}
	}
	return all
}

func trim(lines []string) []string {
	trimmed := make([]string, len(lines))
	for i, l := range lines {
		trimmed[i] = strings.TrimSpace(l)
	}
	return trimmed
}
