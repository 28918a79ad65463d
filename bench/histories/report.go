package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// report is a table of scenes.
type report struct {
	out        io.Writer
	operations int
	took       time.Duration // of the traffic
	violations []string
	undecided  int
	weak       []string // why the report says little
}

// leastExact is the least part of a scene that no fault excuses, in percent. Below that the machine
// was too busy.
const leastExact = 25

func newReport(out io.Writer) *report {
	row(out, "scene", "operations", "judged exactly", "failed", "faults", "slow", "keys in order", "denied by a fault",
		"over, by a fault", "undecided", "not noticed", "violations")
	row(out, strings.Fields(strings.Repeat("--- ", 12))...)
	return &report{out: out}
}

func row(out io.Writer, cells ...string) { fmt.Fprintln(out, "| "+strings.Join(cells, " | ")+" |") }

// add writes the row of a scene.
func (r *report) add(s *scene, v verdict) {
	cells := []string{s.Name, strconv.Itoa(v.operations), fmt.Sprintf("%d %%", 100*v.exact/max(1, v.operations))}
	for _, n := range []int{v.failed, len(s.Faults), v.slow, v.keys, v.blurred, v.over, v.undecided, len(v.blunt), len(v.violations)} {
		cells = append(cells, strconv.Itoa(n))
	}
	row(r.out, cells...)
	if n := len(s.ops); n > 0 {
		r.took += time.Duration(s.ops[n-1].sent - s.ops[0].sent)
	}
	r.operations, r.undecided = r.operations+v.operations, r.undecided+v.undecided
	if v.exact < v.operations*leastExact/100 {
		r.weak = append(r.weak, fmt.Sprintf("%s: %d of %d operations are judged exactly; want %d %%", s.Name, v.exact, v.operations, leastExact))
	}
	for _, text := range v.blunt {
		r.weak = append(r.weak, s.Name+", "+text)
	}
	for _, x := range v.violations {
		r.violations = append(r.violations, fmt.Sprintf("%s, %v, key %d: %s", s.Name, x.class, x.key, x.text))
	}
}

// end writes the sum. The error has the first violations.
func (r *report) end() error {
	fmt.Fprintf(r.out, "\n%d operations in %v (%.0f per second), %d violations, %d keys undecided\n",
		r.operations, r.took.Round(time.Second), float64(r.operations)/max(r.took, 1).Seconds(), len(r.violations), r.undecided)
	const most = 20
	switch {
	case len(r.violations) > 0:
		return fmt.Errorf("%d violations, such as:\n%s", len(r.violations), strings.Join(r.violations[:min(most, len(r.violations))], "\n"))
	case len(r.weak) > 0:
		return fmt.Errorf("the report says little:\n%s", strings.Join(r.weak, "\n"))
	case r.undecided > 0:
		return fmt.Errorf("no order was found, and none excluded, for %d keys", r.undecided)
	}
	return nil
}
