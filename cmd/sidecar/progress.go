package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// progress is a line about the requests so far, which only a terminal shows. The zero value shows
// nothing.
type progress struct {
	to    io.Writer // nil: no terminal
	start time.Time
	last  time.Time // of the last line
}

// newProgress returns a progress, which shows nothing if w is no terminal.
func newProgress(w io.Writer) *progress {
	if isTerminal(w) {
		return &progress{to: w, start: time.Now()}
	}
	return new(progress)
}

// show shows the progress ten times a second. all is 0 if nobody knows how many bytes there are.
func (p *progress) show(requests int, read, all int64) {
	now := time.Now()
	if p.to == nil || now.Sub(p.last) < 100*time.Millisecond {
		return
	}
	p.last = now
	_, _ = io.WriteString(p.to, "\r\x1b[K"+progressLine(requests, read, all, now.Sub(p.start)))
}

// end removes the line.
func (p *progress) end() {
	if p.to != nil && !p.last.IsZero() {
		_, _ = io.WriteString(p.to, "\r\x1b[K")
	}
}

// progressLine returns a line of at most 80 characters.
func progressLine(requests int, read, all int64, took time.Duration) string {
	rate := fmt.Sprintf("%.2f million requests, %.2f million/s", float64(requests)/1e6, float64(requests)/1e6/took.Seconds())
	if all <= 0 || read <= 0 {
		return rate
	}
	const width = 20
	part := min(float64(read)/float64(all), 1)
	done := int(part * width)
	left := time.Duration(float64(took) * (1 - part) / part).Round(time.Second)
	return fmt.Sprintf("[%s%s] %3.0f%% %s, %v left", strings.Repeat("#", done), strings.Repeat(".", width-done), 100*part, rate, left)
}
