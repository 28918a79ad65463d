package main

import (
	"context"
	"io"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/testing/certtest", "test/parts"}, Third: []string{}})
}

func TestModelEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "127.0.0.1:0", w) }()
	if _, err := r.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestModelDoesNotStartAtAnAddressOfNobody(t *testing.T) {
	if err := run(t.Context(), "nowhere", io.Discard); err == nil {
		t.Error("got no error")
	}
}
