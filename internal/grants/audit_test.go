package grants

import (
	"log/slog"
	"strings"
	"testing"
)

// JSON itself escapes control characters below space only, and an operator reads the log in a terminal.
func TestTheNameOfARevokerCannotHarmATerminal(t *testing.T) {
	log := new(lines)
	p := start(t, func(o *Options) { o.Logger = slog.New(slog.NewJSONHandler(log, nil)) })
	g, _ := p.give(t, of("a", 5))
	if _, _, err := p.Revoke(t.Context(), g.ID, "a\u009b2J\u202eb\nc\xffd"); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); strings.ContainsAny(text, "\u009b\u202e") || !strings.Contains(text, "\"revoked_by\":\"a\ufffd2J\ufffdb\ufffdc\ufffdd\"") {
		t.Errorf("the log says\n%s", text)
	}
}

func TestTheKeyOfAGrantCannotHarmATerminal(t *testing.T) {
	log := new(lines)
	p := start(t, func(o *Options) { o.Logger = slog.New(slog.NewJSONHandler(log, nil)) })
	p.give(t, of("a\u009b2J\u202e", 5))
	if text := log.String(); strings.ContainsAny(text, "\u009b\u202e") || !strings.Contains(text, "=a\ufffd2J\ufffd\"]") {
		t.Errorf("the log says\n%s", text)
	}
}
