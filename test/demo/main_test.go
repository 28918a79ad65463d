package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/testing/certtest", "test/parts"}, Third: []string{}})
}

func TestEveryExampleHasAnInvitation(t *testing.T) {
	for _, example := range []string{"", "llm", "concurrency"} {
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
