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

Each setting is a flag of ` + "`sidecar serve`" + `, an environment variable, or a key of the settings file (` + "`--config`" + `: YAML, TOML or
JSON by its name), where ` + "`-` and `_`" + ` are the same. A flag wins over the environment, the environment over the file, the file over
the default. A list is a repeated flag, or separated by commas; in a file it may be a list. Durations are written ` + "`250ms`, `10s`, `1m30s`, `7d`, `2w`" + `.
What is no setting, in the file or with a name that starts with ` + "`WEIR_`" + `, is refused, and every mistake is told at once.

| flag and key | environment | default | what it does |
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

Rules are read again when their files change; the settings are read once, at the start. ` + "`GOMEMLIMIT`" + ` is set to 90 % of the container's
memory limit unless it is set already, and ` + "`GOGC`" + ` is adjusted so that small heaps are not collected all the time, unless it is set.
Go takes ` + "`GOMAXPROCS`" + ` from the container's CPU limit.
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
