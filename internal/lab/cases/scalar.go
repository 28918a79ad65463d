package cases

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// number returns a whole number in bounds, 0 after a mistake.
func (r *reader) number(n *yaml.Node, path string, least, most uint64) uint32 {
	got, err := strconv.ParseUint(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || got < least || got > most {
		r.fail(n, path, "must be a whole number from %d to %d", least, most)
		return 0
	}
	return uint32(got)
}

// longest bounds a duration: a century.
const longest = 100 * 365 * 24 * time.Hour

// duration returns a duration of Go, with days (d) before hours: 36h, 2d, 1d12h, 250ms.
func (r *reader) duration(n *yaml.Node, path string) time.Duration {
	text := n.Value
	var days uint64
	var err error
	if before, rest, found := strings.Cut(text, "d"); found {
		days, err = strconv.ParseUint(before, 10, 16)
		if text = rest; text == "" {
			text = "0s"
		}
	}
	d, parseErr := time.ParseDuration(text)
	const day = 24 * time.Hour
	if n.Kind != yaml.ScalarNode || err != nil || parseErr != nil || d < 0 || d > longest || time.Duration(days) > longest/day-d/day {
		r.fail(n, path, "is %q, must be a duration such as 250ms, 10s, 1h30m or 2d, at most 100 years", n.Value)
		return 0
	}
	return time.Duration(days)*day + d
}

// oneOf returns one of some words, "" after a mistake.
func (r *reader) oneOf(n *yaml.Node, path string, words ...string) string {
	if n.Kind != yaml.ScalarNode || !slices.Contains(words, n.Value) {
		r.fail(n, path, "must be one of %s", strings.Join(words, ", "))
		return ""
	}
	return n.Value
}
