package app

import "testing"

func TestADirectoryOfCountsIsForCountsInMemory(t *testing.T) {
	for _, test := range []struct {
		state State
		redis bool
		want  string
	}{
		{State{Setting: "dir"}, true, ""},
		{State{Setting: "dir", Dir: "/d"}, false, ""},
		{State{Setting: "dir", Dir: "/d"}, true, "dir: counts in Redis outlive a restart there: must be off unless counts are in memory"},
	} {
		got := ""
		if err := test.state.Check(test.redis); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%+v, Redis %t: got %q, want %q", test.state, test.redis, got, test.want)
		}
	}
}
