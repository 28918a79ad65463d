package main

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/weirproxy/weir/pkg/statistics"
)

// readConfig returns what an environment means, which is what os.Environ returns. The error joins everything that is wrong
// with it, one line each: nothing else is looked at before it is right. Variables that are in no table are ignored, as
// platforms pass some.
func readConfig(environ []string) (config, error) {
	var c config
	given := make(map[string]string, len(environ))
	for _, pair := range environ {
		if name, text, found := strings.Cut(pair, "="); found {
			given[name] = text
		}
	}
	var errs []error
	for _, g := range table(&c) {
		for _, v := range g.variables {
			text, found := given[v.name]
			if !found && v.usual == "" {
				continue
			}
			if !found {
				text = v.usual
			}
			errs = append(errs, lines(v.name, v.value.store(text))...)
		}
	}
	errs = append(errs, c.readMogrifiers(given)...)
	// What variables mean together is only worth a word when each is right.
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	set := func(name string) bool { _, found := given[name]; return found }
	return c, errors.Join(c.complete(set)...)
}

// lines puts the name of a variable before each line of what is wrong with it; none for nil.
func lines(name string, err error) []error {
	if err == nil {
		return nil
	}
	var all []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		all = append(all, fmt.Errorf("%s: %s", name, line))
	}
	return all
}

// readMogrifiers reads the variables of each mogrifier that USE_DOG_STATSD_MOGRIFIERS names.
func (c *config) readMogrifiers(given map[string]string) []error {
	var errs []error
	for _, key := range c.raw.mogrifiers {
		if strings.ContainsFunc(key, func(r rune) bool { return r == '=' || !unicode.IsPrint(r) }) {
			errs = append(errs, fmt.Errorf("USE_DOG_STATSD_MOGRIFIERS: %q: must be what the name of a variable may have in it", key))
			continue
		}
		prefix := "DOG_STATSD_MOGRIFIER_" + strings.ToUpper(key)
		m := mogrifier{Pattern: given[prefix+"_PATTERN"], Name: given[prefix+"_NAME"]}
		err := pairs(&m.Tags).store(given[prefix+"_TAGS"])
		errs = append(errs, lines(prefix+"_TAGS", err)...)
		_, err = statistics.NewMogrifier(m.Pattern, m.Name, m.Tags)
		errs = append(errs, lines(prefix, err)...)
		c.Stats.Mogrifiers = append(c.Stats.Mogrifiers, m)
	}
	return errs
}
