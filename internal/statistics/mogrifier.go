package statistics

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// Mogrifier gives other names, and tags, to the metrics of DogStatsD whose names match a pattern.
// NewMogrifier makes one. A Mogrifier does not change, and is safe for concurrent use.
type Mogrifier struct {
	pattern *regexp.Regexp
	name    string
	tags    [][2]string    // name and text, by name
	group   *regexp.Regexp // $0, $1 and so on
}

// NewMogrifier returns a mogrifier. In the name and in the texts of tags, $0 stands for the match
// of the pattern, $1 for the first group, and so on. The error lists every mistake.
func NewMogrifier(pattern, name string, tags map[string]string) (Mogrifier, error) {
	m := Mogrifier{name: name, group: regexp.MustCompile(`\$\d+`)}
	var errs []error
	compiled, err := regexp.Compile(pattern)
	switch {
	case pattern == "":
		errs = append(errs, errors.New("pattern: must not be empty"))
	case err != nil:
		errs = append(errs, fmt.Errorf("pattern: %w", err))
	default:
		m.pattern = compiled
	}
	if name == "" {
		errs = append(errs, errors.New("name: must not be empty"))
	}
	errs = append(errs, m.check("name", name))
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		if tag == "" || tags[tag] == "" {
			errs = append(errs, fmt.Errorf("tags: %q: must have a name and a text", tag+":"+tags[tag]))
		}
		errs = append(errs, m.check("tags: "+tag, tags[tag]))
		m.tags = append(m.tags, [2]string{tag, tags[tag]})
	}
	return m, errors.Join(errs...)
}

// check returns the mistake in a text with groups.
func (m *Mogrifier) check(where, text string) error {
	if m.pattern == nil {
		return nil
	}
	for _, group := range m.group.FindAllString(text, -1) {
		if n, err := strconv.Atoi(group[1:]); err != nil || n > m.pattern.NumSubexp() {
			return fmt.Errorf("%s: %s: the pattern has %d groups", where, group, m.pattern.NumSubexp())
		}
	}
	return nil
}

// apply returns the new name and the tags of a metric; false when the pattern does not match.
func (m *Mogrifier) apply(name string) (string, []string, bool) {
	groups := m.pattern.FindStringSubmatch(name)
	if groups == nil {
		return name, nil, false
	}
	fill := func(text string) string {
		return m.group.ReplaceAllStringFunc(text, func(group string) string {
			n, _ := strconv.Atoi(group[1:]) // checked
			return groups[n]
		})
	}
	tags := make([]string, 0, len(m.tags))
	for _, tag := range m.tags {
		tags = append(tags, dogTag(tag[0], fill(tag[1])))
	}
	if short := without(fill(m.name), ":|"); short != "" {
		name = short // empty when the groups are
	}
	return name, tags, true
}
