package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestALineOfProgressFitsATerminal(t *testing.T) {
	for _, c := range []struct {
		requests  int
		read, all int64
		took      time.Duration
		want      string
	}{
		{2_000_000, 50, 100, 2 * time.Second, "[##########..........]  50% 2.00 million requests, 1.00 million/s, 2s left"},
		{3_000_000, 0, 0, time.Second, "3.00 million requests, 3.00 million/s"},
		{12_345_678_901, 200, 100, 7 * time.Hour, "[####################] 100% 12345.68 million requests, 0.49 million/s, 0s left"},
	} {
		got := progressLine(c.requests, c.read, c.all, c.took)
		if got != c.want || utf8.RuneCountInString(got) > 80 {
			t.Errorf("got %q, want %q in at most 80 characters", got, c.want)
		}
	}
}

// A log or a pipe gets no lines of progress.
func TestOnlyATerminalShowsProgress(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	p := newProgress(file)
	p.show(1, 1, 2)
	p.end()
	if info, err := file.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("a file has %d bytes, %v", info.Size(), err)
	}
	var terminal strings.Builder
	p = &progress{to: &terminal, start: time.Now().Add(-time.Second)}
	p.show(1_000_000, 1, 2)
	p.show(1_000_001, 1, 2) // too soon
	p.end()
	if got := terminal.String(); strings.Count(got, "\r\x1b[K") != 2 || !strings.Contains(got, " 50% 1.00 million requests") || !strings.HasSuffix(got, "\x1b[K") {
		t.Errorf("a terminal got %q", got)
	}
}
