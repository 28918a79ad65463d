package main

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/internal/statistics"
)

// readConfig returns the configuration in an environment, in the form of os.Environ. The error
// joins everything that is wrong with it, one line each: nothing else is looked at before it is
// right. Variables that are in no table are ignored, as platforms pass some.
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
			errs = append(errs, settings.Mistakes(v.name, v.value.Set(text))...)
		}
	}
	errs = append(errs, c.readMogrifiers(given)...)
	// Mistakes in combinations are useful once each variable is right.
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	set := func(name string) bool { _, found := given[name]; return found }
	return c, errors.Join(c.complete(set)...)
}

func (c *config) readMogrifiers(given map[string]string) []error {
	var errs []error
	for _, key := range c.raw.stats.mogrifiers {
		if strings.ContainsFunc(key, func(r rune) bool { return r == '=' || !unicode.IsPrint(r) }) {
			errs = append(errs, fmt.Errorf("USE_DOG_STATSD_MOGRIFIERS: %q: must have only characters of a variable's name", key))
			continue
		}
		prefix := "DOG_STATSD_MOGRIFIER_" + strings.ToUpper(key)
		var tags map[string]string
		err := settings.Pairs(&tags).Set(given[prefix+"_TAGS"])
		errs = append(errs, settings.Mistakes(prefix+"_TAGS", err)...)
		m, err := statistics.NewMogrifier(given[prefix+"_PATTERN"], given[prefix+"_NAME"], tags)
		errs = append(errs, settings.Mistakes(prefix, err)...)
		c.Statistics.StatsD.Mogrifiers = append(c.Statistics.StatsD.Mogrifiers, m)
	}
	return errs
}
