package main

import (
	"fmt"
	"strings"
)

// header returns the first two lines of the report.
func header() string {
	columns := []string{
		"scenario", "mode", "admitted", "over", "worst key", "during", "after", "lacks most", "recovery",
		"errors", "unreached", "late", "missing", "without Redis", "leased",
	}
	return line(columns...) + "\n" + line(strings.Fields(strings.Repeat("--- ", len(columns)))...)
}

// line returns a line of a Markdown table.
func line(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |" }

// row returns the line of a run.
func (r *result) row(s *scenario, mode string) string {
	over, worst, lacks := fmt.Sprintf("%d = %s", r.over, share(r.overShare)), "–", "–"
	if r.worst > 0 {
		worst = fmt.Sprintf("%d = %s, %s", r.worstOver, share(r.worst), r.names[r.worstKey])
	}
	if r.lacks > 0 && s.holds == 0 {
		lacks = fmt.Sprintf("%d, %s", r.lacks, r.names[r.lacksKey])
	}
	during, after, recovery := share(r.during), share(r.after), fmt.Sprintf("%.1f s", r.recovery.Seconds())
	if r.recovery == neverWithin {
		recovery = "not seen"
	}
	if s.fault == nil || s.always {
		during, recovery = "–", "–"
	}
	if s.holds > 0 {
		over, worst = fmt.Sprintf("%d in flight, %.1f s", r.crowd, r.long.Seconds()), "–"
		during, after, recovery = "–", "–", "–"
	}
	return line("`"+s.name+"`: "+s.what, mode, fmt.Sprintf("%d of %d", r.admitted, r.asked), over, worst, during, after, lacks, recovery,
		fmt.Sprint(r.errors), fmt.Sprint(r.unreached), fmt.Sprint(r.late), fmt.Sprint(r.missing),
		share(percent(int(r.shares.without), r.asked)), share(percent(int(r.shares.leased), r.asked)))
}

func share(percent float64) string { return fmt.Sprintf("%.2f %%", percent) }
