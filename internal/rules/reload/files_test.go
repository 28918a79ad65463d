package reload_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/rules/reload"
)

// anything takes every file and directory whose name does not start with two dots.
func anything() reload.Files {
	visible := func(name string) bool { return !strings.HasPrefix(name, "..") }
	return reload.Files{Match: visible, Below: visible}
}

func TestFilesSayWhichNamesAreReadAndHowDeep(t *testing.T) {
	dir := tree(t, map[string]string{
		"b": document("b", 1), "a.conf": document("a", 1), ".c": document("c", 1), "..d": "never", "b.d/deep/e.txt": document("e", 1),
		"..2026/b": "never",
	})
	if err := os.Symlink("..2026", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	sources, err := anything().Read([]string{dir}, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".c", "a.conf", "b", "b.d/deep/e.txt"}, names(t, dir, sources)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if _, err := anything().Read([]string{filepath.Join(dir, "..2026", "none")}, ""); err == nil {
		t.Error("a path that is not there is no error")
	}
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := anything().Read([]string{filepath.Join(dir, "empty")}, ""); err == nil || !strings.HasSuffix(err.Error(), "holds no rule file, must have at least one") {
		t.Errorf("an empty directory: error %v", err)
	}
}

// A link names another directory after its files were listed, and before the files are read.
func TestFilesThatAreExchangedWhileTheyAreReadAreReadAnew(t *testing.T) {
	top := tree(t, map[string]string{"v1/a.yaml": document("a", 1), "v2/b.yaml": document("b", 2)})
	link := filepath.Join(top, "current")
	turn := func(to string) {
		t.Helper()
		if err := os.Symlink(to, link+".next"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".next", link); err != nil {
			t.Fatal(err)
		}
	}
	turn("v1")
	exchanges := 0
	files := reload.Files{Match: func(name string) bool {
		if exchanges++; exchanges == 1 {
			turn("v2")
		}
		return reload.IsRuleFile(name)
	}}
	sources, err := files.Read([]string{link}, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"current/b.yaml"}, names(t, top, sources)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	// A link to nothing stays a mistake.
	if err := os.Symlink("nothing", filepath.Join(top, "v2", "c.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Read([]string{link}, ""); err == nil || !strings.HasSuffix(err.Error(), "current/c.yaml: no such file or directory") {
		t.Errorf("with a link to nothing: error %v", err)
	}
}

func TestDirectoriesBelowAreWatchedAsTheyComeAndGo(t *testing.T) {
	dir := tree(t, map[string]string{"a": document("a", 1), "one/b": document("b", 1)})
	l, _, log := start(t, reload.Options{Paths: []string{dir}, Files: anything()}, true)
	write(t, filepath.Join(dir, "one", "b"), document("b", 2))
	log.await(t, "rules loaded")
	if err := os.MkdirAll(filepath.Join(dir, "two", "three"), 0o700); err != nil {
		t.Fatal(err)
	}
	log.await(t, "rules unchanged", "rules loaded", "rules refused")
	write(t, filepath.Join(dir, "two", "three", "c"), document("c", 3))
	log.await(t, "rules loaded")
	if b, c := requests(l, "b"), requests(l, "c"); b != 2 || c != 3 {
		t.Errorf("requests in force: %d and %d, want 2 and 3", b, c)
	}
	if err := os.Rename(filepath.Join(dir, "one"), filepath.Join(dir, "..gone")); err != nil {
		t.Fatal(err)
	}
	log.await(t, "rules loaded")
	if got := requests(l, "b"); got != -1 {
		t.Errorf("after its directory went: got %d, want no such domain", got)
	}
}
