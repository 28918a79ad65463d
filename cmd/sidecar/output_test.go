package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// JSON itself leaves characters above 0x7e as they are, and a terminal obeys some of them.
func TestJSONHasNoCharactersThatATerminalObeys(t *testing.T) {
	const key = "\x1b[2J \x7f \u009b2J a\u202eb ü \U000e0001"
	var out bytes.Buffer
	if err := writeJSON(&out, map[string]string{"key": key}); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["key"] != key {
		t.Errorf("got %q, %v back, want %q", back["key"], err, key)
	}
	if strings.ContainsAny(out.String(), "\x1b\x7f\u009b\u202e\U000e0001") || !strings.Contains(out.String(), "ü") {
		t.Errorf("got %q", out.String())
	}
}

// The device null is a character device too, and top would draw to it for ever.
func TestTheNullDeviceIsNoTerminal(t *testing.T) {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	if t.Setenv("TERM", "xterm"); isTerminal(f) {
		t.Error("it is taken for a terminal")
	}
}

// Exactly as many denials as --max-denied allows are not too many: 7 of 1000 are 0.7%.
func TestPercentagesAreTheNearestNumber(t *testing.T) {
	for _, c := range []struct {
		text      string
		some, all float64
	}{{"0.7%", 7, 1000}, {"0.5%", 1, 200}, {"0.07%", 7, 10000}, {"5.7%", 57, 1000}, {"29%", 29, 100}, {"100%", 1, 1}, {"0%", 0, 1}, {"1e-1%", 1, 1000}} {
		var p percentage
		if err := p.Set(c.text); err != nil || p.part != c.some/c.all {
			t.Errorf("%s: got %v, %v, want %v", c.text, p.part, err, c.some/c.all)
		}
		if c.text != "1e-1%" && p.String() != c.text {
			t.Errorf("%s: is written %s", c.text, p.String())
		}
	}
}

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
