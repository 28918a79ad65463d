package app

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMistakesInTheSettingsOfTheState(t *testing.T) {
	tests := []struct {
		name  string
		state State
		redis bool
		want  string
	}{
		{"off", State{}, false, ""},
		{"off, with Redis", State{}, true, ""},
		{"at the end only", State{Dir: "/d"}, false, ""},
		{"each second", State{Dir: "/d", Interval: time.Second}, false, ""},
		{"with Redis", State{Dir: "/d"}, true, "dir: counts in Redis outlive a restart there: must be off unless counts are in memory"},
		{"no directory", State{Interval: time.Minute}, false, "interval: there is nothing to write: needs dir"},
		{"too often", State{Dir: "/d", Interval: time.Millisecond}, false, "interval: 1ms: must be 0 or at least 1s"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.state.Setting = "dir"
			got := ""
			if err := errors.Join(test.state.Check("interval", test.redis)...); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}
