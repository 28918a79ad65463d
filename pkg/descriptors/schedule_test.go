package descriptors_test

import (
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// FuzzSchedule loads an entry of any texts. The span of a valid entry has the instant that was
// asked, and no edge inside.
func FuzzSchedule(f *testing.F) {
	f.Add("2026-03-29", "2026-10-25 02:30", "mon-fri", "09:00-18:00", true, int64(1774746000), uint16(90))
	f.Add("", "", "sat,sun", "22:00-06:00", false, int64(1774746000), uint16(9000))
	f.Add("2026-12-01T08:00:01", "2200-01-01", "", "02:15-02:45", false, int64(1774746000), uint16(9))
	f.Fuzz(func(t *testing.T, from, until, days, hours string, berlin bool, second int64, minutes uint16) {
		zone := "" // a database of zones for each input would take most of the time
		if berlin {
			zone = "Europe/Berlin"
		}
		entry := map[string]any{"factor": 2}
		for key, text := range map[string]string{"from": from, "until": until, "days": days, "hours": hours, "zone": zone} {
			if text != "" {
				entry[key] = text
			}
		}
		limit := map[string]any{"unit": "minute", "requests_per_unit": 10, "schedule": []any{entry}}
		document := map[string]any{"domain": "edge", "default": limit}
		data := must.Get(yaml.Marshal(document))(t)
		rules, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: data}}, descriptors.Options{})
		if err != nil {
			return
		}
		l := &rules.Domain("edge").Default.Limits[0]
		now := algorithms.Instant(second%(1<<33)) * algorithms.Instant(time.Second)
		holds, stays := l.Schedule().At(now)
		if stays <= now {
			t.Fatalf("%s: at %d the entry stays until %d", data, now, stays)
		}
		later := now.Add(time.Duration(minutes) * time.Minute)
		fresh := must.First(descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: data}}, descriptors.Options{}))(t)
		then, _ := fresh.Domain("edge").Default.Limits[0].Schedule().At(later)
		if same := later < stays; same && then != holds {
			t.Fatalf("%s: entry %d holds from %d until %d, but entry %d at %d", data, holds, now, stays, then, later)
		}
		if at, changed := l.At(now); changed != (holds == 0) || changed && at.PerPeriod() != 20 || !changed && at.PerPeriod() != 10 {
			t.Fatalf("%s: %d per minute while entry %d holds", data, at.PerPeriod(), holds)
		}
	})
}
