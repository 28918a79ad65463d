package reload_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
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
	must.Do(t, os.Symlink("..2026", filepath.Join(dir, "link")))
	sources := must.Get(anything().Read([]string{dir}, ""))(t)
	must.Match(t, "files", []string{".c", "a.conf", "b", "b.d/deep/e.txt"}, names(t, dir, sources))
	if _, err := anything().Read([]string{filepath.Join(dir, "..2026", "none")}, ""); err == nil {
		t.Error("a path that is not there is no error")
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
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
		must.Do(t, os.Symlink(to, link+".next"))
		must.Do(t, os.Rename(link+".next", link))
	}
	turn("v1")
	exchanges := 0
	files := reload.Files{Match: func(name string) bool {
		if exchanges++; exchanges == 1 {
			turn("v2")
		}
		return reload.IsRuleFile(name)
	}}
	sources := must.Get(files.Read([]string{link}, ""))(t)
	must.Match(t, "files", []string{"current/b.yaml"}, names(t, top, sources))
	// A link to nothing stays a mistake.
	must.Do(t, os.Symlink("nothing", filepath.Join(top, "v2", "c.yaml")))
	if _, err := files.Read([]string{link}, ""); err == nil || !strings.HasSuffix(err.Error(), "current/c.yaml: no such file or directory") {
		t.Errorf("with a link to nothing: error %v", err)
	}
}

func TestDirectoriesBelowAreWatchedAsTheyComeAndGo(t *testing.T) {
	dir := tree(t, map[string]string{"a": document("a", 1), "one/b": document("b", 1)})
	l, _, log := start(t, reload.Options{Paths: []string{dir}, Files: anything()}, true)
	write(t, filepath.Join(dir, "one", "b"), document("b", 2))
	log.await(t, "rules loaded")
	must.Do(t, os.MkdirAll(filepath.Join(dir, "two", "three"), 0o700))
	log.await(t, "rules unchanged", "rules loaded", "rules refused")
	write(t, filepath.Join(dir, "two", "three", "c"), document("c", 3))
	log.await(t, "rules loaded")
	if b, c := requests(l, "b"), requests(l, "c"); b != 2 || c != 3 {
		t.Errorf("requests in force: %d and %d, want 2 and 3", b, c)
	}
	must.Do(t, os.Rename(filepath.Join(dir, "one"), filepath.Join(dir, "..gone")))
	log.await(t, "rules loaded")
	if got := requests(l, "b"); got != -1 {
		t.Errorf("after its directory went: got %d, want no such domain", got)
	}
}
