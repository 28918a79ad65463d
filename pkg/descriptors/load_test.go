package descriptors

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/spelling", "pkg/algorithms"},
		Third: []string{"go.yaml.in/yaml/v3"},
		Never: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/spf13/viper", "os", "net"},
	})
}

// load loads one document, which must have no mistakes.
func load(tb testing.TB, document string) *Rules {
	tb.Helper()
	rules, _, err := Load([]Source{{Name: "rules.yaml", Data: []byte(document)}}, Options{})
	if err != nil {
		tb.Fatalf("Load: %v", err)
	}
	return rules
}

// messages returns the mistakes and warnings of some sources, in one list.
func messages(tb testing.TB, sources ...Source) []string {
	tb.Helper()
	rules, warnings, err := Load(sources, Options{})
	if (rules == nil) != (err != nil) {
		tb.Errorf("Load returned rules %v and error %v, want one of them", rules, err)
	}
	var got []string
	if err != nil {
		var mistakes Errors
		if !errors.As(err, &mistakes) || len(mistakes) == 0 {
			tb.Fatalf("Load returned the error %v of type %T, want Errors", err, err)
		}
		for _, e := range mistakes {
			got = append(got, e.Error())
		}
	}
	for _, w := range warnings {
		got = append(got, w.String())
	}
	return got
}

// wanted returns the texts of a file's lines that start with "# want: ".
func wanted(data []byte) []string {
	var want []string
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "# want: "); ok {
			want = append(want, strings.TrimSuffix(text, "\n"))
		}
	}
	return want
}

// Every file in testdata/bad ends with the messages it must give, all of them and in this order.
// With WRITE_TESTDATA set they are written there, to be read before they are believed.
func TestLoadReportsEveryMistakeWithItsLine(t *testing.T) {
	testMessages(t, "testdata/bad/*.yaml", true)
}

// envoyproxy/ratelimit accepts every file in testdata/reference, and says nothing where Weir warns.
func TestLoadTakesFilesOfTheReference(t *testing.T) {
	testMessages(t, "testdata/reference/*.yaml", false)
}

func testMessages(t *testing.T, pattern string, mistakes bool) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := messages(t, Source{Name: name, Data: data})
			if got := len(got) > 0 && !strings.Contains(got[0], ": warning: "); got != mistakes {
				t.Errorf("got mistakes %t, want %t", got, mistakes)
			}
			if diff := cmp.Diff(wanted(data), got); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
				if os.Getenv("WRITE_TESTDATA") != "" {
					writeWanted(t, file, data, got)
				}
			}
		})
	}
}

func writeWanted(t *testing.T, file string, data []byte, got []string) {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "# want: ") {
			b.WriteString(line)
		}
	}
	for _, g := range got {
		b.WriteString("# want: " + g + "\n")
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
