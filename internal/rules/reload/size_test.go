package reload_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// A file of 50 MB became 4.5 GB when the bound was 64 MiB for each file.
func TestAFileAboveTheBoundIsRefusedUnread(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1), "b.yaml": "", "c.yaml": document("c", 1)})
	large := filepath.Join(dir, "b.yaml")
	if err := os.Truncate(large, 50_000_000); err != nil { // takes no space
		t.Fatal(err)
	}
	for name, read := range map[string]func() ([]descriptors.Source, error){
		"directory": func() ([]descriptors.Source, error) { return reload.Files{}.Read([]string{dir}, "") },
		"settings": func() ([]descriptors.Source, error) {
			return reload.Files{}.Read([]string{filepath.Join(dir, "a.yaml")}, large)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			sources, err := read()
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
				t.Errorf("%d bytes allocated, want at most 1 MiB", used)
			}
			_, _, err = descriptors.Load(sources, descriptors.Options{})
			if want := large + ": has 50000000 bytes beside 8"; err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s… alone", err, want)
			}
		})
	}
}

func TestTheRulesStayWhenAFileGrowsAboveTheBound(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1)})
	l, r, _ := start(t, reload.Options{
		Paths: []string{dir}, Options: descriptors.Options{MaxBytes: 1000},
	}, false)
	write(t, filepath.Join(dir, "b.yaml"), document("b", 1)+strings.Repeat("#\n", 600))
	err := r.Reload(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "must be at most 1000 together (max-rules-bytes)") {
		t.Errorf("got %v, want the bound", err)
	}
	if a, b := requests(l, "a"), requests(l, "b"); a != 1 || b != -1 {
		t.Errorf("requests in force: %d and %d, want the rules before", a, b)
	}
}

func TestTOMLIsBoundedBeforeItIsParsed(t *testing.T) {
	dir := tree(t, map[string]string{"weir.toml": strings.Repeat("a=1\n", 1000)})
	file := filepath.Join(dir, "weir.toml")
	sources, err := reload.Files{Bounds: descriptors.Options{MaxBytes: 20_000}}.Read(nil, file)
	if err != nil {
		t.Fatal(err) // of TOML, which has the key 1000 times
	}
	want := []descriptors.Error{{File: file, Text: "has 24000 bytes, must be at most 20000 together (max-rules-bytes)"}}
	must.Match(t, "mistakes", want, sources[0].Mistakes)
}
