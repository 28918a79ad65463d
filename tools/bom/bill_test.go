package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
)

// The binary of this test has modules too.
func TestBillHasEveryModuleOfTheBinary(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"-version", "v1.2.3", program}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program + ".bom.json")
	if err != nil {
		t.Fatal(err)
	}
	var bill cyclonedx.BOM
	if err := json.Unmarshal(text, &bill); err != nil {
		t.Fatal(err)
	}
	if main := bill.Metadata.Component; main.Name != "program" || main.Version != "v1.2.3" {
		t.Errorf("the program: got %s %s, want program v1.2.3", main.Name, main.Version)
	}
	got := map[string]bool{}
	for _, one := range *bill.Components {
		got[one.Name+" "+one.Version] = true
	}
	if std := "std " + strings.TrimPrefix(runtime.Version(), "go"); !got[std] {
		t.Errorf("want %s in the bill", std)
	}
	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := 0
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); fields[0] == "dep" {
			deps++
			if !got[fields[1]+" "+fields[2]] {
				t.Errorf("want %s %s in the bill", fields[1], fields[2])
			}
		}
	}
	if deps < 2 || len(got) != deps+1 {
		t.Errorf("got %d components for %d modules, want one for each, and std", len(got), deps)
	}

	// A second bill of the same binary is the same.
	if err := run([]string{"-version", "v1.2.3", program}); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(program + ".bom.json"); err != nil || !bytes.Equal(text, again) {
		t.Errorf("a second bill: got another text (error %v), want the same", err)
	}
}

func TestComponentsOfModules(t *testing.T) {
	t.Parallel()
	const sum = "h1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	raw := make([]byte, sha256.Size)
	for i := range raw {
		raw[i] = byte(i)
	}
	for _, c := range []struct {
		name                string
		module              debug.Module
		ref, purl, property string
		hash                string
	}{
		{
			"a module",
			debug.Module{Path: "example.org/A/b", Version: "v2.0.0+incompatible", Sum: sum},
			"example.org/A/b@v2.0.0+incompatible", "pkg:golang/example.org/a/b@v2.0.0%2Bincompatible", "", hex.EncodeToString(raw),
		},
		{
			"replaced by a module",
			debug.Module{Path: "example.org/a", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v1.0.1", Sum: sum}},
			"example.org/fork@v1.0.1", "pkg:golang/example.org/fork@v1.0.1", "example.org/a@v1.0.0", hex.EncodeToString(raw),
		},
		{
			"replaced by a directory",
			debug.Module{Path: "example.org/a", Version: "v1.0.0", Replace: &debug.Module{Path: "../a", Version: "(devel)"}},
			"example.org/a@v1.0.0", "pkg:golang/example.org/a@v1.0.0", "../a", "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := dependency(&c.module)
			if err != nil {
				t.Fatal(err)
			}
			var hash, property string
			if got.Hashes != nil {
				hash = (*got.Hashes)[0].Value
			}
			if got.Properties != nil {
				property = (*got.Properties)[0].Value
			}
			if got.BOMRef != c.ref || got.PackageURL != c.purl || property != c.property || hash != c.hash {
				t.Errorf("got %s, %s, property %q, hash %q", got.BOMRef, got.PackageURL, property, hash)
			}
		})
	}
	for _, bad := range []string{"h2:AAAA", "h1:AAAA", "h1:???"} {
		if _, err := dependency(&debug.Module{Path: "example.org/a", Version: "v1.0.0", Sum: bad}); err == nil || !strings.Contains(err.Error(), "example.org/a") {
			t.Errorf("checksum %q: got error %v, want one that names the module", bad, err)
		}
	}
}

func TestErrorsNameTheProgram(t *testing.T) {
	t.Parallel()
	if err := run(nil); err == nil || !strings.Contains(err.Error(), "PROGRAM") {
		t.Errorf("no program: got error %v, want the usage", err)
	}
	if err := run([]string{"main.go"}); err == nil || !strings.Contains(err.Error(), "main.go") {
		t.Errorf("a text: got error %v, want one that names it", err)
	}
}
