package app

import "testing"

func TestADirectoryOfCountsIsForCountsInMemory(t *testing.T) {
	const beside = "counts in Redis outlive a restart there: must be off unless counts are in memory"
	for _, test := range []struct {
		dir   string
		redis bool
		want  string
	}{{"", true, ""}, {"/d", false, ""}, {"/d", true, beside}} {
		got := ""
		if err := (State{test.dir}).Check(test.redis); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%q, Redis %t: got %q, want %q", test.dir, test.redis, got, test.want)
		}
	}
}
