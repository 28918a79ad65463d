package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

//go:generate go test -count=1 -run ^TestTheSettingsDocumentIsCurrent$ . -update

var update = flag.Bool("update", false, "write docs/settings.md anew")

// settingsDocument is where operators read about the settings.
const settingsDocument = "../../docs/settings.md"

// document writes the settings as they are documented.
func document() string {
	var b strings.Builder
	b.WriteString(`# Settings

<!-- Written by go generate from cmd/sidecar/settings.go. -->

Each setting has three forms: a flag of ` + "`sidecar serve`" + `, an environment variable, and a key of the settings file. A flag wins over the environment, and
the environment wins over the file. The name of the file (` + "`--config`" + `) says whether it is YAML, TOML or JSON. In its keys ` + "`-` and `_`" + ` are the same.
A list is a repeated flag, or has commas; in the file it may be a list. Durations are ` + "`250ms`, `10s`, `1m30s`, `7d` or `2w`" + `.
An unknown name is a mistake, in the file and after ` + "`WEIR_`" + `. Weir prints all mistakes at once.

| flag and key | environment | default | effect |
|---|---|---|---|
`)
	for _, s := range table(new(config)) {
		usual := ""
		if s.usual != "" {
			usual = "`" + s.usual + "`"
		}
		help := strings.ReplaceAll(s.help, "*", `\*`)
		switch {
		case strings.Contains(s.value.Kind, "|"):
			help += " (" + strings.ReplaceAll(s.value.Kind, "|", ", ") + ")"
		case s.onlyOutside():
			help += "; not in the file itself"
		}
		fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", s.name, s.variable(), usual, help)
	}
	b.WriteString(`
The settings file may also hold rules, as a list of rule documents under ` + "`domains`" + `:

` + "```yaml" + `
max-keys: 200000
response-headers: [ietf, retry-after]
domains:
  - domain: edge
    descriptors:
      - key: path
        rate_limit: {unit: second, requests_per_unit: 50}
` + "```" + `

Weir reads rules again when their files change, and settings only at the start. Weir sets ` + "`GOMEMLIMIT`" + ` to 90 % of the container's memory limit, and ` + "`GOGC`" + `
so that small heaps are not collected all the time. Values in the environment stay. Go takes ` + "`GOMAXPROCS`" + ` from the container's CPU limit.
`)
	return b.String()
}

func TestTheSettingsDocumentIsCurrent(t *testing.T) {
	want := document()
	if *update {
		if err := os.WriteFile(settingsDocument, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(settingsDocument)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/settings.md is not what the table of settings says: run make generate")
	}
}

func TestEverySettingIsDocumentedOnOneLine(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range table(new(config)) {
		if s.help == "" || strings.ContainsAny(s.help, "\n|`") || strings.HasSuffix(s.help, ".") || seen[s.name] {
			t.Errorf("%s: help %q must be one line without | and `, and the name be there once", s.name, s.help)
		}
		seen[s.name] = true
		if err := s.value.Set(s.usual); err != nil {
			t.Errorf("%s: the default is not valid: %v", s.name, err)
		}
	}
}
