package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

//go:generate go test -count=1 -run ^TestTheVariablesDocumentIsCurrent$ . -update

var update = flag.Bool("update", false, "write docs/migrating-variables.md anew")

const variablesDocument = "../../docs/migrating-variables.md"

func document() string {
	var b strings.Builder
	b.WriteString(`# The variables of envoyproxy/ratelimit

<!-- Written by go generate from cmd/ratelimit/environment.go and variables.txt. -->

` + "`ratelimit`" + ` starts with the environment of envoyproxy/ratelimit. This page has the effect of each of these variables, and of a
few more. Values have the form that the original reads: durations are ` + "`250ms`, `10s` or `1m30s`" + `, pairs are ` + "`key:value,key:value`" + `.
An empty value is an empty text, and a mistake where a number, a duration or a boolean must be. ` + "`ratelimit`" + ` prints all mistakes at once, and exits with code 1.
Variables that are not on this page have no effect, nor have arguments other than check and compare. The log names variables that look like a typo.
[migrating.md](migrating.md) has all differences from the original.

"No effect" means that ` + "`ratelimit`" + ` accepts the variable, if the original would start with the value. The text after it is the reason.
`)
	effect, idle := effects()
	for _, g := range table(new(config)) {
		fmt.Fprintf(&b, "\n## %s\n\n| variable | default | effect |\n|---|---|---|\n", g.title)
		for _, v := range g.variables {
			usual, does := "", effect[v.name]
			if v.usual != "" {
				usual = "`" + v.usual + "`"
			}
			if idle[v.name] {
				does = "**no effect:** " + does
			}
			if strings.Contains(v.value.Kind, "|") {
				does += " (" + strings.ReplaceAll(v.value.Kind, "|", ", ") + ")"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.name, usual, does)
		}
	}
	b.WriteString(`
Variables of other parts: ` + "`DOG_STATSD_MOGRIFIER_<NAME>_PATTERN`, `_NAME` and `_TAGS`" + ` belong to USE_DOG_STATSD_MOGRIFIERS, ` +
		"`OTEL_*`" + `
to TRACING_ENABLED, and ` + "`GOMEMLIMIT`, `GOGC` and `GOMAXPROCS`" + ` to the Go runtime. ` + "`GOSTATS_*`" + ` have no effect.
`)
	return b.String()
}

func TestTheVariablesDocumentIsCurrent(t *testing.T) {
	want := document()
	if *update {
		must.Do(t, os.WriteFile(variablesDocument, []byte(want), 0o644))
		return
	}
	got := must.Get(os.ReadFile(variablesDocument))(t)
	if string(got) != want {
		t.Errorf("%s is not what cmd/ratelimit/environment.go says: run go generate ./cmd/ratelimit", variablesDocument)
	}
}

func TestEveryVariableIsDocumentedOnOneLine(t *testing.T) {
	does, _ := effects()
	seen := make(map[string]bool)
	for _, g := range table(new(config)) {
		for _, v := range g.variables {
			text := does[v.name]
			if text == "" || strings.ContainsAny(text, "\n|") || strings.HasSuffix(text, ".") || seen[v.name] {
				t.Errorf("%s: %q must be one line without |, and the name be there once", v.name, text)
			}
			seen[v.name] = true
			if v.usual == "" {
				continue
			}
			if err := v.value.Set(v.usual); err != nil {
				t.Errorf("%s: the default is not valid: %v", v.name, err)
			}
		}
	}
	for name := range does {
		if !seen[name] {
			t.Errorf("variables.txt: %s is no variable", name)
		}
	}
}
