package readme

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`^#+ (.*)$`)
	entryLine = regexp.MustCompile(`^- \[(FEATURE|CHANGE|ENHANCEMENT|BUGFIX)\] [^:]+: \S`)
)

// TestLinksLeadSomewhere follows the links between the Markdown files of the repository, to
// headings too.
func TestLinksLeadSomewhere(t *testing.T) {
	n, headings := 0, make(map[string]map[string]bool)
	for _, name := range trackedFiles(t) {
		if filepath.Ext(name) != ".md" {
			continue
		}
		for i, line := range outside(readFile(t, name)) {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				n++
				if problem := follow(t, filepath.Dir(name), name, m[1], headings); problem != "" {
					t.Errorf("%s:%d: %s: %s", name, i+1, m[1], problem)
				}
			}
		}
	}
	if n < 20 {
		t.Errorf("got %d links, want the many that there are", n)
	}
}

// follow returns the mistake of a link in the file name, or "". headings keeps the slugs of the
// headings of files that follow has read.
func follow(t *testing.T, dir, name, to string, headings map[string]map[string]bool) string {
	t.Helper()
	file, anchor, _ := strings.Cut(to, "#")
	if file == "" {
		file = name
	} else {
		file = filepath.Join(dir, file)
	}
	if _, err := os.Stat(filepath.Join(repository, file)); err != nil {
		return "there is no such file"
	}
	if anchor == "" {
		return ""
	}
	if headings[file] == nil {
		headings[file] = make(map[string]bool)
		for _, line := range outside(readFile(t, file)) {
			if m := heading.FindStringSubmatch(line); m != nil {
				headings[file][slug(m[1])] = true
			}
		}
	}
	if !headings[file][anchor] {
		return "there is no such heading"
	}
	return ""
}

// outside returns the lines of a Markdown file, empty where they belong to a fenced block.
func outside(text string) []string {
	lines, inside := strings.Split(text, "\n"), false
	for i, line := range lines {
		if strings.HasPrefix(line, "```") {
			inside = !inside
			lines[i] = ""
		} else if inside {
			lines[i] = ""
		}
	}
	return lines
}

// slug returns the anchor of a heading, as GitHub makes it.
func slug(heading string) string {
	heading = strings.ToLower(strings.ReplaceAll(heading, "`", ""))
	heading = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(heading, "")
	return strings.ReplaceAll(heading, " ", "-")
}

func TestALinkToAHeadingIsItsSlug(t *testing.T) {
	for heading, want := range map[string]string{"Which algorithm?": "which-algorithm", "`on_full`, and more": "on_full-and-more"} {
		if got := slug(heading); got != want {
			t.Errorf("%s: got %s, want %s", heading, got, want)
		}
	}
}

func TestChangelogLinesSayWhatKindOfChangeAndWhere(t *testing.T) {
	for i, line := range outside(readFile(t, "CHANGELOG.md")) {
		if strings.HasPrefix(line, "-") && !entryLine.MatchString(line) {
			t.Errorf("CHANGELOG.md:%d: %q: must be [FEATURE] area: what an operator sees, or [CHANGE], [ENHANCEMENT], [BUGFIX]", i+1, line)
		}
	}
}

// Two changes of one line, both kept by a merge, are the usual reason for a second line.
func TestTheChangelogNamesEachChangeOnce(t *testing.T) {
	seen := make(map[string]int)
	for i, line := range outside(readFile(t, "CHANGELOG.md")) {
		first, _, _ := strings.Cut(line, ". ")
		if before := seen[first]; before > 0 && entryLine.MatchString(line) {
			t.Errorf("CHANGELOG.md:%d: begins as line %d does", i+1, before)
		}
		seen[first] = i + 1
	}
}

func TestNoPageHasTheMarksOfAMerge(t *testing.T) {
	for _, file := range trackedFiles(t) {
		if filepath.Ext(file) != ".md" {
			continue
		}
		for i, line := range strings.Split(readFile(t, file), "\n") {
			if strings.HasPrefix(line, "<<<<<<< ") || strings.HasPrefix(line, ">>>>>>> ") {
				t.Errorf("%s:%d: %s", file, i+1, line)
			}
		}
	}
}
