package forms_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/conformance/cases"
	"github.com/weirproxy/weir/conformance/internal/forms"
)

func domain(t *testing.T, rules string) cases.Domain {
	t.Helper()
	d, err := cases.Parse("test", []byte("about: a test\ndomains: [{domain: d, rules: "+rules+"}]"))
	if err != nil {
		t.Fatal(err)
	}
	return d.Domains[0]
}

func TestLimitadorReadsOneFile(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	d := domain(t, `{descriptors: [{key: k, value: "a*", rate_limit: {unit: minute, requests_per_unit: 5}}, {key: k, rate_limit: {unit: hour, requests_per_unit: 7}}]}`)
	if err := forms.Write(forms.Limitador, directory, directory, "v1", []cases.Domain{d}, nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(directory, "limits.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`descriptors[0]["k"].startsWith("a")`, `!(descriptors[0]["k"].startsWith("a")`, "seconds: 60", "max_value: 7", "size(descriptors[2]) == 1",
	} {
		if !strings.Contains(string(text), part) {
			t.Errorf("limits.yaml lacks %s:\n%s", part, text)
		}
	}
}

func TestAFormNamesRulesThatItCannotSay(t *testing.T) {
	t.Parallel()
	shadow := domain(t, `{descriptors: [{key: k, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}]}`)
	if err := forms.Check(forms.Limitador, shadow); !errors.Is(err, forms.ErrCannot) {
		t.Errorf("got %v, want ErrCannot", err)
	}
	if err := forms.Check(forms.Reference, shadow); err != nil {
		t.Error(err)
	}
	shadow.Forms = []string{forms.Weir}
	if err := forms.Check(forms.Reference, shadow); !errors.Is(err, forms.ErrCannot) {
		t.Errorf("got %v, want ErrCannot", err)
	}
}
