package statistics

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// Mogrifier makes of the names that a pattern matches other names, with tags, for DogStatsD. Make one with NewMogrifier; it
// does not change, and is safe for concurrent use.
type Mogrifier struct {
	pattern *regexp.Regexp
	name    string
	tags    [][2]string // name and text, by name
	place   *regexp.Regexp
}

// NewMogrifier returns a mogrifier. In the name and in the texts of the tags $0 stands for what the pattern matches, $1, $2 and
// so on for its groups. It fails with all that is wrong.
func NewMogrifier(pattern, name string, tags map[string]string) (Mogrifier, error) {
	m := Mogrifier{name: name, place: regexp.MustCompile(`\$\d+`)}
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

// check returns what is wrong with a text in which groups stand.
func (m *Mogrifier) check(where, text string) error {
	if m.pattern == nil {
		return nil
	}
	for _, place := range m.place.FindAllString(text, -1) {
		if n, err := strconv.Atoi(place[1:]); err != nil || n > m.pattern.NumSubexp() {
			return fmt.Errorf("%s: %s: the pattern has %d groups", where, place, m.pattern.NumSubexp())
		}
	}
	return nil
}

// apply returns the name and the tags that a name becomes; false when the pattern does not match it.
func (m *Mogrifier) apply(name string) (string, []string, bool) {
	groups := m.pattern.FindStringSubmatch(name)
	if groups == nil {
		return name, nil, false
	}
	fill := func(text string) string {
		return m.place.ReplaceAllStringFunc(text, func(place string) string {
			n, _ := strconv.Atoi(place[1:]) // checked
			return groups[n]
		})
	}
	tags := make([]string, 0, len(m.tags))
	for _, tag := range m.tags {
		tags = append(tags, dogTag(tag[0], fill(tag[1])))
	}
	if short := without(fill(m.name), ":|"); short != "" {
		name = short // else groups were empty
	}
	return name, tags, true
}
