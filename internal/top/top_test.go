package top

import (
	"testing"

	"github.com/weirproxy/weir/internal/deptest"
)

func TestDeps(t *testing.T) { deptest.Check(t, deptest.Rules{Own: []string{}, Third: []string{}}) }
