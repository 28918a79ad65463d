package headers

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// The tests of pkg/server and of pkg/middleware cover the values.
func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{
			"internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/top", "internal/zones",
			"pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "pkg/store/memstore",
		},
		Third: []string{},
	})
}

func TestNamesInStructuredFieldsArePrintableASCII(t *testing.T) {
	if got, want := string(appendItem(nil, "a\nb\u00e9c", true)), `"a?b?c"`; got != want {
		t.Errorf("appendItem: got %s; want %s", got, want)
	}
}

// A month of a calendar is 28 to 31 days, and an hour less where summer time begins.
func TestTheWindowOfACalendarHasItsTrueLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // from 1 January 2000, 00:00 UTC
		const text = `domain: edge
descriptors:
  - {key: month, rate_limit: {unit: month, requests_per_unit: 5, align: {to: calendar}}}
  - {key: berlin, rate_limit: {unit: month, requests_per_unit: 5, align: {to: calendar, zone: Europe/Berlin}}}
  - {key: first, rate_limit: {unit: month, requests_per_unit: 5, align: {to: first_hit}}}
`
		rules := must.First(descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(text)}}, descriptors.Options{}))(t)
		check := func(days int, month, berlin int) {
			t.Helper()
			time.Sleep(time.Duration(days) * 24 * time.Hour)
			for i, seconds := range []int{month, berlin, 30 * 86400} {
				l := &rules.All()[i].Limits[0]
				got := string(AppendQuotas(nil, []Policy{{limit: l, name: l.PeriodName()}}))
				want := fmt.Sprintf(`"month";q=5;w=%d`, seconds)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s on %v (-want +got):\n%s", rules.All()[i].Path, time.Now().UTC(), diff)
				}
			}
		}
		check(0, 31*86400, 31*86400)
		check(40, 29*86400, 29*86400)      // 10 February of a leap year
		check(33, 31*86400, 31*86400-3600) // 14 March
	})
}
