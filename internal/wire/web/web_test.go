package web

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Third: []string{}})
}

func TestNamesThatAreNotListedAreNotKnown(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST.:8080": true, "127.0.0.1:1": true, "[::1]": true, "weir.example": true, "Weir.Example.:80": true,
		"": false, "evil.example": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false,
	} {
		if got := Named(host, []string{"weir.example"}); got != want {
			t.Errorf("%q: got %v, want %v", host, got, want)
		}
	}
}
