package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// Later versions share counts with 0.1.0, or give them another name. So a name or a value that
// differs here needs another number of its algorithm.
func TestNamesAndValuesAreThoseOfRelease010(t *testing.T) {
	prefix := fmt.Sprintf("%d:", time.Now().UnixNano())
	s, _ := given(t, Options{Prefix: prefix})
	want := map[string]string{
		"4:shop|4:path=2:/x;1;3600000000":  "00287a6cc6600603000000000000",
		"4:shop|4:path=2:/x;2;3600000000":  "00287a6cc660060300000000000000000000000a0000000a000000",
		"4:shop|4:path=2:/x;3;3600000000":  "00287a6cc660060300000000",
		"4:shop|4:path=2:/x;4;3600000000":  "00287a6cc6600603000000000000000000",
		"4:shop|4:path=2:/x;5;3600000000":  "00287a6cc6600600000000000000000003000000000a000000",
		"4:shop|4:path=2:/x;7;86400000000": "00c0b50abe60060300000000000000208d28d26006",
		"4:shop|4:path=2:/x;8;86400000000": "00c0b50abe6006030000000000000000008051010000000000",
	}
	got := make(map[string]string)
	for _, a := range storetest.EveryRate() {
		l := algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Hour}
		if a.HasCalendar() {
			l.Calendar = calendarOf(algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1})
			l.Period = 24 * time.Hour
		}
		charge := hit("4:shop|4:path=2:/x", l)
		charge.Hits = 3
		ask(t, s, charge)
		name := s.name(&charge)
		read := []string{"GET", name}
		if a == algorithms.SlidingWindowLog {
			read = []string{"LINDEX", name, "0"}
		}
		value, err := command(t, s, read...).ToString()
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimPrefix(name, prefix)] = fmt.Sprintf("%x", value)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names and values (-want +got):\n%s", diff)
	}
}
