package model

import (
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"pkg/algorithms", "pkg/store"}})
}
