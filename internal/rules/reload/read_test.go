package reload_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Do(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return dir
}

func names(t *testing.T, dir string, sources []descriptors.Source) []string {
	t.Helper()
	var all []string
	for _, s := range sources {
		name := must.Get(filepath.Rel(dir, s.Name))(t)
		all = append(all, name)
	}
	return all
}

func TestReadTakesTheRuleFilesOfADirectoryAndNoOthers(t *testing.T) {
	dir := tree(t, map[string]string{
		"b.yml": "b", "a.yaml": "a", "c.json": "c", "notes.txt": "", "d.yaml~": "", ".hidden.yaml": "", "YAML": "",
		"below/e.yaml": "", "dir.yaml/f.yaml": "",
	})
	must.Do(t, os.Symlink(filepath.Join(dir, "below", "e.yaml"), filepath.Join(dir, "link.yaml")))
	sources := must.Get(reload.Files{}.Read([]string{dir, filepath.Join(dir, "a.yaml"), filepath.Join(dir, "notes.txt")}, ""))(t)
	must.Match(t, "files read", []string{"a.yaml", "b.yml", "c.json", "link.yaml", "notes.txt"}, names(t, dir, sources))
}

func TestReadRefusesDevices(t *testing.T) {
	_, err := reload.Files{}.Read([]string{os.DevNull}, "")
	if err == nil || err.Error() != os.DevNull+": must be a regular file" {
		t.Errorf("Read = %v; want it refused", err)
	}
}

func TestReadSaysWhereASymbolicLinkLeadsNowhere(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1)})
	must.Do(t, os.Symlink("gone.yaml", filepath.Join(dir, "b.yaml")))
	sources, err := reload.Files{}.Read([]string{dir}, "")
	if want := filepath.Join(dir, "b.yaml") + ": no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("Read = %v; want %s", err, want)
	}
	if len(sources) != 1 {
		t.Errorf("sources: got %d, want the one that could be read", len(sources))
	}
}

func TestInlineRulesMeanTheSameInEveryFormat(t *testing.T) {
	tests := []struct{ name, content, position string }{
		{"weir.yaml", "max-keys: 10\ndomains:\n- domain: Edge\n  descriptors:\n  - key: User\n    rate_limit: {unit: hour, requests_per_unit: 7}\n", ":5"},
		{"weir.json", `{"max-keys": 10,` + "\n" + `"domains": [{"domain": "Edge",` + "\n" +
			`"descriptors": [{"key": "User", "rate_limit": {"unit": "hour", "requests_per_unit": 7}}]}]}`, ":3"},
		{"weir.toml", "max-keys = 10\n[[domains]]\ndomain = 'Edge'\n[[domains.descriptors]]\nkey = 'User'\nrate_limit = {unit = 'hour', requests_per_unit = 7}\n", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(tree(t, map[string]string{test.name: test.content}), test.name)
			sources := must.Get(reload.Files{}.Read(nil, file))(t)
			rules := must.First(descriptors.Load(sources, descriptors.Options{}))(t)
			rule := rules.Domain("Edge").Match([]descriptors.Entry{{Key: "User", Value: "x"}})
			if rule == nil || rule.Limits[0].Requests != 7 {
				t.Fatalf("rule: got %+v, want 7 requests", rule)
			}
			if test.position != "" && ":"+string('0'+rune(rule.Line)) != test.position {
				t.Errorf("line: got %d, want %s", rule.Line, test.position)
			}
		})
	}
}

func TestTOMLMistakesHaveALine(t *testing.T) {
	tests := []struct{ name, content, want string }{
		{"syntax", "max-keys = 1\nrules = [\n", "weir.toml:2: not valid TOML"},
		{"domains_is_a_table", "[domains]\ndomain = 'a'\n", "weir.toml: domains: is a map, must be a list of rule documents"},
		{"domains_holds_text", "domains = ['a']\n", `weir.toml: domains[0]: is the text "a", must be a map`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := tree(t, map[string]string{"weir.toml": test.content})
			sources, err := reload.Files{}.Read(nil, filepath.Join(dir, "weir.toml"))
			if err == nil {
				_, _, err = descriptors.Load(sources, descriptors.Options{})
			}
			if err == nil || !strings.HasPrefix(err.Error(), filepath.Join(dir, test.want)) {
				t.Errorf("Read = %v; want %s", err, test.want)
			}
		})
	}
}
