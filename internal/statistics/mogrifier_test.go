package statistics

import (
	"strings"
	"testing"
)

func TestAMogrifierMustMeanSomething(t *testing.T) {
	for name, test := range map[string]struct {
		pattern, name string
		tags          map[string]string
		mistakes      int
	}{
		"nothing":           {"", "", nil, 2},
		"a bad pattern":     {"(", "x", nil, 1},
		"a group too many":  {"(a)", "$2", map[string]string{"t": "$9999999999999999999999"}, 2},
		"a tag of no name":  {"a", "x", map[string]string{"": "t"}, 1},
		"a tag of no text":  {"a", "x", map[string]string{"t": ""}, 1},
		"all is well":       {"(a)", "$1$0", map[string]string{"t": "$1"}, 0},
		"a dollar on a sum": {"a", "$ 5", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewMogrifier(test.pattern, test.name, test.tags)
			got := 0
			if err != nil {
				got = strings.Count(err.Error(), "\n") + 1
			}
			if got != test.mistakes {
				t.Errorf("%d mistakes, want %d: %v", got, test.mistakes, err)
			}
		})
	}
}
