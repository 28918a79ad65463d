package main

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestLogLinesHaveTheOriginalsFields(t *testing.T) {
	c := read(t, "LOG_FORMAT=json")
	var out strings.Builder
	l := newLogger(&out, &c)
	l.Info("not shown")
	l.Warn("shown", slog.String("x", "mine"))
	var got map[string]any
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatalf("%v in %q", err, out.String())
	}
	if _, ok := got["@timestamp"].(string); !ok {
		t.Errorf("no time in %q", out.String())
	}
	delete(got, "@timestamp")
	must.Match(t, "result", map[string]any{"level": "warning", "@message": "shown", "x": "mine"}, got)
}

func TestLogLevelsAreTheOriginals(t *testing.T) {
	for level, want := range map[string]int{"panic": 0, "fatal": 0, "error": 1, "Warning": 2, "info": 3, "debug": 4, "trace": 4} {
		c := read(t, "LOG_LEVEL="+level)
		var out strings.Builder
		l := newLogger(&out, &c)
		l.Error("e")
		l.Warn("w")
		l.Info("i")
		l.Debug("d")
		if got := strings.Count(out.String(), "\n"); got != want {
			t.Errorf("%s logs %d levels, want %d", level, got, want)
		}
	}
}
