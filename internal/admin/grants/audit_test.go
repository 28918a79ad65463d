package grants

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/weirproxy/weir/pkg/limiter"
)

// JSON itself escapes control characters below space only, and an operator reads the log in a
// terminal.
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
	if text := log.String(); strings.ContainsAny(text, "\u009b\u202e") || !strings.Contains(text, "=a\ufffd2J\ufffd\",\"rule\"") {
		t.Errorf("the log says\n%s", text)
	}
}

// Log lines about requests have the same attribute.
func TestAnAuditLineNamesTheDescriptorAsOtherLinesDo(t *testing.T) {
	g := &limiter.Grant{Domain: "edge", Entries: []limiter.Entry{{Key: "path", Value: "/a,b"}, {Key: "k=1", Value: `x=y\z`}}}
	var got string
	for _, attr := range Attrs(g) {
		if attr.Key == "entries" {
			t.Error("entries is there too")
		}
		if attr.Key == "descriptor" {
			got = attr.Value.String()
		}
	}
	if want := `path=/a\,b,k\=1=x=y\\z`; got != want {
		t.Errorf("descriptor: got %q, want %q", got, want)
	}
}
