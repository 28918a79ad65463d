package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

// The linker keeps every exported method of every library where a program calls methods by a name
// that only the running program has. Templates do. The binary then is two thirds larger.
func TestTheLinkerMayLeaveOutMethods(t *testing.T) {
	for _, folder := range []string{"cmd/sidecar", "cmd/ratelimit"} {
		binary := must.Get(parts.Program(t.Context(), "../..", folder, false))(t)
		data := must.Get(os.ReadFile(binary))(t)
		if !bytes.Contains(data, []byte("github.com/weirproxy/weir/pkg/limiter.(*Limiter).Check")) {
			t.Errorf("%s: the binary has no names of functions", folder)
		}
		if bytes.Contains(data, []byte("text/template.(*state).evalField")) {
			t.Errorf("%s: the binary has templates: go build -ldflags=-dumpdep says which function leads to text/template", folder)
		}
	}
}
