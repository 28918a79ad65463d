package algorithms_test

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

func TestAWindowIsTheOneInWhichAnIdleKeyCounts(t *testing.T) {
	month := must.Get(algorithms.NewCalendar(algorithms.CalendarSpec{Unit: algorithms.CalendarMonth, Count: 1}))(t)
	first := must.Get(algorithms.NewCalendar(algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1, FirstHit: true}))(t)
	at := time.Date(2026, time.February, 14, 12, 30, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for name, test := range map[string]struct {
		limit      algorithms.Limit
		start, end string // "" without a window
	}{
		"fixed_window": {algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: time.Hour}, "02-14 12:00", "02-14 13:00"},
		"a month":      {algorithms.Limit{Algorithm: algorithms.CalendarWindow, Requests: 1, Period: 30 * day, Extra: algorithms.Extra{Calendar: month}}, "02-01 00:00", "03-01 00:00"},
		"a first hit":  {algorithms.Limit{Algorithm: algorithms.CalendarWindow, Requests: 1, Period: day, Extra: algorithms.Extra{Calendar: first}}, "", ""},
		"a bucket":     {algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: time.Hour}, "", ""},
		"no limit":     {},
	} {
		start, end, ok := test.limit.Window(algorithms.Instant(at.UnixNano()))
		if ok != (test.start != "") {
			t.Errorf("%s: has a window %t", name, ok)
		}
		text := func(i algorithms.Instant) string { return time.Unix(0, int64(i)).UTC().Format("01-02 15:04") }
		if ok && (text(start) != test.start || text(end) != test.end) {
			t.Errorf("%s: got %s to %s; want %s to %s", name, text(start), text(end), test.start, test.end)
		}
	}
}
