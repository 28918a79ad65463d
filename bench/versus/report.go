package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/bench/program"
)

// A ratio is a figure of a service that another run must repeat.
type ratio struct {
	service, figure    string
	value, least, most float64 // the median of the rounds, and their range
}

// ratios are in the order of the report.
type ratios []ratio

// tolerance is by how much a ratio may differ in another run.
const tolerance = 0.15

// pages is the difference of memory in bytes a key that says nothing: a heap grows by pages.
const pages = 16

// figure is a figure of a turn, as a multiple of the bare server's in the same turn.
type figure struct {
	name string
	of   func(t *turn) float64
}

func figures() []figure {
	part := func(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }
	return []figure{
		{"CPU, steady", func(t *turn) float64 { return part(t.steady.perServer(), t.bareSteady.perServer()) }},
		{"Redis, steady", func(t *turn) float64 { return part(t.steady.perRedis(), t.bareSteady.perServer()) }},
		{"CPU, closed loop", func(t *turn) float64 { return part(t.full.perServer(), t.bareFull.perServer()) }},
		{"Redis, closed loop", func(t *turn) float64 { return part(t.full.perRedis(), t.bareFull.perServer()) }},
	}
}

// The figures of memory, in bytes.
const (
	bytesName = "bytes a key"
	redisName = "of Redis a key"
)

// names returns the names of all figures that another run must repeat.
func names() (all []string) {
	for _, f := range figures() {
		all = append(all, f.name)
	}
	return append(all, bytesName, redisName)
}

// ratiosOf returns the ratios of all services: the median of the rounds. Memory has one value.
func ratiosOf(all []*runs) (found ratios) {
	for _, r := range all {
		if len(r.turns) == 0 || r.name == bareName {
			continue
		}
		for _, f := range figures() {
			values := make([]float64, len(r.turns))
			for i := range r.turns {
				values[i] = f.of(&r.turns[i])
			}
			found = append(found, ratio{r.name, f.name, middle(values), slices.Min(values), slices.Max(values)})
		}
		server, redis := r.bytes.server, r.bytes.redis
		found = append(found, ratio{r.name, bytesName, server, server, server}, ratio{r.name, redisName, redis, redis, redis})
	}
	return found
}

// bytes reports whether the figure is memory.
func (r ratio) bytes() bool { return r.figure == bytesName || r.figure == redisName }

// cell shows a ratio, with its range over the rounds.
func (r ratio) cell() string {
	switch {
	case r.value <= 0:
		return "–"
	case r.least == r.most:
		return number(r.value)
	}
	return fmt.Sprintf("%s (%s to %s)", number(r.value), number(r.least), number(r.most))
}

// middle returns the median.
func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// at returns the ratio of a service's figure.
func (all ratios) at(service, figure string) (ratio, bool) {
	i := slices.IndexFunc(all, func(r ratio) bool { return r.service == service && r.figure == figure })
	if i < 0 {
		return ratio{}, false
	}
	return all[i], true
}

// compare writes each ratio beside the one of another run. The error counts the ratios that differ
// by more than the tolerance.
func (all ratios) compare(w io.Writer, now ratios) error {
	far, compared := 0, 0
	fmt.Fprintln(w, line("service", "figure", "before", "now", "difference")+"\n"+ruler(5))
	for _, r := range now {
		before, ok := all.at(r.service, r.figure)
		if !ok || before.value == 0 {
			continue
		}
		compared++
		d := r.value/before.value - 1
		mark := ""
		if math.Abs(d) > tolerance && (!r.bytes() || math.Abs(r.value-before.value) > pages) {
			far, mark = far+1, " !"
		}
		fmt.Fprintln(w, line(r.service, r.figure, number(before.value), number(r.value), fmt.Sprintf("%+.0f %%%s", 100*d, mark)))
	}
	if compared == 0 {
		return errors.New("no ratio is in both runs")
	}
	if far > 0 {
		return fmt.Errorf("%d of %d ratios differ by more than %.0f %%", far, compared, 100*tolerance)
	}
	return nil
}

// line returns a line of a Markdown table.
func line(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |" }

func ruler(columns int) string { return line(slices.Repeat([]string{"---"}, columns)...) }

// number writes a ratio with three digits.
func number(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v < 1:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case v < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// firstColumn begins the header of the table that readRatios reads.
const firstColumn = "bare grpc-go is 1"

// readRatios reads the table of ratios in a report or a page.
func readRatios(text string) (all ratios, err error) {
	var names []string
	for row := range strings.Lines(text) {
		cells, ok := cells(row)
		switch {
		case ok && cells[0] == firstColumn:
			names = cells
		case !ok || len(names) == 0:
			if len(all) > 0 {
				return all, nil
			}
			names = nil
		case strings.HasPrefix(cells[0], "---"):
		case len(cells) != len(names):
			return nil, fmt.Errorf("%q: has %d cells; want %d", strings.TrimSpace(row), len(cells), len(names))
		default:
			for i, cell := range cells[1:] {
				r := ratio{service: cells[0], figure: names[i+1]}
				value, _, _ := strings.Cut(cell, " ")
				if value != "–" {
					if r.value, err = strconv.ParseFloat(value, 64); err != nil {
						return nil, fmt.Errorf("%s, %s: %w", r.service, r.figure, err)
					}
				}
				all = append(all, r)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no table of ratios, with %q in its first cell", firstColumn)
	}
	return all, nil
}

// cells returns the cells of a line of a Markdown table.
func cells(row string) (all []string, ok bool) {
	row = strings.TrimSpace(row)
	if !strings.HasPrefix(row, "| ") || !strings.HasSuffix(row, " |") {
		return nil, false
	}
	for cell := range strings.SplitSeq(row[2:len(row)-2], "|") {
		all = append(all, strings.TrimSpace(cell))
	}
	return all, true
}

// report returns all tables.
func report(all []*runs, rounds int, s spans) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %d cores of %s, %s, rounds: %d, parts of %v, %d keys.\n\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), processor(), runtime.Version(), rounds, s.part, s.keys)
	found := ratiosOf(all)
	fmt.Fprintln(&b, line(append([]string{firstColumn}, names()...)...)+"\n"+ruler(1+len(names())))
	for _, r := range all[1:] {
		row := []string{r.name}
		for _, name := range names() {
			if x, ok := found.at(r.name, name); ok {
				row = append(row, x.cell())
			}
		}
		if len(row) > 1 {
			fmt.Fprintln(&b, line(row...))
		}
	}
	fmt.Fprintln(&b)
	absolute(&b, all)
	verdicts(&b, all)
	for _, r := range all {
		if r.missing == "" {
			fmt.Fprintf(&b, "- %s: %s\n", r.name, r.settings)
			if r.why != "" {
				fmt.Fprintf(&b, "  - a failure: %s\n", r.why)
			}
		} else {
			fmt.Fprintf(&b, "- %s: not measured. %s\n", r.name, r.missing)
		}
	}
	return b.String()
}

// absolute writes the figures of this machine.
func absolute(b *strings.Builder, all []*runs) {
	columns := []string{"this machine", "CPU, steady", "of Redis", "CPU, closed loop", "of Redis", "requests per second"}
	for _, share := range shares() {
		columns = append(columns, fmt.Sprintf("p50, p99, p99.9 at %.0f %%", share*100))
	}
	fmt.Fprintln(b, line(columns...)+"\n"+ruler(len(columns)))
	for _, r := range all {
		if len(r.turns) == 0 {
			continue
		}
		of := func(get func(*turn) time.Duration) time.Duration {
			values := make([]time.Duration, len(r.turns))
			for i := range r.turns {
				values[i] = get(&r.turns[i])
			}
			return program.Median(values)
		}
		capacity := make([]float64, len(r.turns))
		for i := range r.turns {
			capacity[i] = r.turns[i].full.rate()
		}
		row := []string{r.name}
		for _, d := range []time.Duration{
			of(func(t *turn) time.Duration { return t.steady.perServer() }), of(func(t *turn) time.Duration { return t.steady.perRedis() }),
			of(func(t *turn) time.Duration { return t.full.perServer() }), of(func(t *turn) time.Duration { return t.full.perRedis() }),
		} {
			row = append(row, strings.Replace(program.Microseconds(d, 1)+" µs", "- µs", "–", 1))
		}
		row = append(row, fmt.Sprintf("%.0f", middle(capacity)))
		for i := range loads {
			row = append(row, fmt.Sprintf("%s, %s, %s ms",
				milliseconds(of(func(t *turn) time.Duration { return t.p50[i] })),
				milliseconds(of(func(t *turn) time.Duration { return t.p99[i] })),
				milliseconds(of(func(t *turn) time.Duration { return t.p999[i] }))))
		}
		fmt.Fprintln(b, line(row...))
	}
	fmt.Fprintln(b)
}

// verdicts writes the oracle's verdicts.
func verdicts(b *strings.Builder, all []*runs) {
	columns := []string{"answers", "asked", "admitted", "over", "under", "denied without a limit", "failed"}
	fmt.Fprintln(b, line(columns...)+"\n"+ruler(len(columns)))
	for _, r := range all[1:] {
		if len(r.turns) == 0 {
			continue
		}
		sum, denied, failed := tally{}, 0, 0
		for i := range r.turns {
			sum.add(r.turns[i].tally)
			denied, failed = denied+r.turns[i].denied, failed+r.turns[i].failed
		}
		row := []string{r.name}
		for _, n := range []int{sum.asked, sum.admitted, sum.over, sum.under, denied, failed + sum.failed} {
			row = append(row, strconv.Itoa(n))
		}
		fmt.Fprintln(b, line(row...))
	}
	fmt.Fprintln(b)
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1e3) }

// processor returns the name of this machine's processor.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for row := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(row, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// The marks of a page around the report.
const (
	beginMark = "<!-- versus: begin -->\n"
	endMark   = "<!-- versus: end -->\n"
)

// writePage puts a report between the marks of a page.
func writePage(path, report string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	page, err := between(string(text), report)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(page), 0o644)
}

// between puts a report between the marks.
func between(page, report string) (string, error) {
	head, rest, begun := strings.Cut(page, beginMark)
	_, tail, ended := strings.Cut(rest, endMark)
	if !begun || !ended {
		return "", fmt.Errorf("the page has not both marks, %q and then %q", strings.TrimSpace(beginMark), strings.TrimSpace(endMark))
	}
	return head + beginMark + "\n" + report + "\n" + endMark + tail, nil
}
