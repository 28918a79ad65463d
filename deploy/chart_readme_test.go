package deploy

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/test/parts"
)

// valuesTable returns a table of values.yaml: a row for each value, with the default and the
// comment. The comment of a map is a row without a default.
func valuesTable(t *testing.T) string {
	t.Helper()
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(parts.Read(t, weirChart+"/values.yaml")), &document); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| value | default | meaning |\n|---|---|---|\n")
	var rows func(prefix string, node *yaml.Node)
	rows = func(prefix string, node *yaml.Node) {
		for i := 0; i < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			meaning := comment(key.HeadComment, key.LineComment, value.LineComment)
			if meaning == "" {
				t.Errorf("values.yaml: %s%s has no comment", prefix, key.Value)
			}
			name := "`" + prefix + key.Value + "`"
			if value.Kind == yaml.MappingNode && value.Style&yaml.FlowStyle == 0 {
				fmt.Fprintf(&table, "| %s | | %s |\n", name, meaning)
				rows(prefix+key.Value+".", value)
				continue
			}
			fmt.Fprintf(&table, "| %s | `%s` | %s |\n", name, flow(t, value), meaning)
		}
	}
	rows("", document.Content[0])
	return table.String()
}

// comment returns the comments of a value as a text for a cell.
func comment(all ...string) string {
	var words []string
	for _, c := range all {
		for line := range strings.Lines(c) {
			words = append(words, strings.Fields(strings.TrimPrefix(line, "#"))...)
		}
	}
	return strings.ReplaceAll(strings.Join(words, " "), "|", "\\|")
}

// flow returns a value in one line.
func flow(t *testing.T, value *yaml.Node) string {
	t.Helper()
	plain := *value
	plain.LineComment, plain.HeadComment = "", ""
	if len(plain.Content) > 0 {
		plain.Style |= yaml.FlowStyle
	}
	text, err := yaml.Marshal(&plain)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// TestTheChartsREADMEListsItsValues compares; UPDATE=1 writes the table anew.
func TestTheChartsREADMEListsItsValues(t *testing.T) {
	t.Parallel()
	const file, begin = weirChart + "/README.md", "<!-- the values, written by UPDATE=1 go test -run README . in deploy -->\n\n"
	text := parts.Read(t, file)
	head, got, found := strings.Cut(text, begin)
	if !found {
		t.Fatalf("%s must have the line %s", file, begin)
	}
	want := valuesTable(t)
	if os.Getenv("UPDATE") != "" {
		parts.Write(t, file, head+begin+want)
		return
	}
	if got != want {
		t.Errorf("%s is old: run UPDATE=1 go test -run README . in deploy", file)
	}
}
