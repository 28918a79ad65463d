package main

import (
	"testing"

	"github.com/weirproxy/weir/internal/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/certificates/certtest", "test/parts"}, Third: []string{}})
}
