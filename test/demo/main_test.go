package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/test/parts"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/testing/certtest", "test/parts"}, Third: []string{}})
}

func TestEveryExampleHasAnInvitation(t *testing.T) {
	for _, example := range []string{"", "llm", "concurrency", "rlqs"} {
		text, err := invitationTo(example)
		if err != nil || !strings.Contains(text, "localhost:10000") {
			t.Errorf("example %q: got %q and error %v, want requests to try", example, text, err)
		}
		for _, file := range []string{"envoy.yaml", "rules"} {
			if _, err := os.Stat(filepath.Join("..", "..", "deploy", example, file)); err != nil {
				t.Errorf("example %q: %v", example, err)
			}
		}
	}
	if _, err := invitationTo("nothing"); err == nil {
		t.Error("an example that does not exist: got no error")
	}
}

func TestWarningsOfTheSidecarAreShown(t *testing.T) {
	log := "level=INFO msg=a\nlevel=WARN msg=b\nlevel=INFO msg=c\nlevel=ERROR msg=d\n"
	sidecar, err := parts.Start("sidecar", "/bin/sh", "-c", `printf "$0"`, log)
	if err != nil {
		t.Fatal(err)
	}
	var shown bytes.Buffer
	warn(t.Context(), sidecar, &shown)
	if got, want := shown.String(), "sidecar: level=WARN msg=b\nsidecar: level=ERROR msg=d\n"; got != want {
		t.Errorf("shown: got %q, want %q", got, want)
	}
}
