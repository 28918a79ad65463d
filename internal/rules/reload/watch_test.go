package reload_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
)

func wantLoads(t *testing.T, r *reload.Reloader, loads, refusals uint64) {
	t.Helper()
	s := r.Status()
	must.Match(t, "loads and refusals", []uint64{loads, refusals}, []uint64{s.Loads, s.Refusals})
}

// wantUnchanged has the watcher look at a file and find it as it was: everything before has been
// dealt with then.
func wantUnchanged(t *testing.T, log messages, file string) {
	t.Helper()
	now := time.Now()
	must.Do(t, os.Chtimes(file, now, now))
	log.await(t, "rules unchanged", "rules loaded", "rules refused")
}

func TestAChangeIsOneReloadAndATouchIsNone(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1), "b.yaml": document("b", 1)})
	l, r, log := start(t, reload.Options{Paths: []string{dir}}, true)

	wantUnchanged(t, log, filepath.Join(dir, "a.yaml"))
	wantLoads(t, r, 1, 0)
	write(t, filepath.Join(dir, "a.yaml"), document("a", 2))
	log.await(t, "rules loaded")
	if got := requests(l, "a"); got != 2 {
		t.Errorf("requests in force: got %d, want 2", got)
	}
	wantUnchanged(t, log, filepath.Join(dir, "b.yaml"))
	wantLoads(t, r, 2, 0)
}

func TestFilesThatComeAndGoAreReloads(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1)})
	l, _, log := start(t, reload.Options{Paths: []string{dir}}, true)
	write(t, filepath.Join(dir, "b.yaml"), document("b", 5))
	log.await(t, "rules loaded")
	if got := requests(l, "b"); got != 5 {
		t.Errorf("after a file came: got %d, want 5", got)
	}
	must.Do(t, os.Remove(filepath.Join(dir, "b.yaml")))
	log.await(t, "rules loaded")
	if got := requests(l, "b"); got != -1 {
		t.Errorf("after the file went: got %d, want no domain", got)
	}
}

func TestAFileThatIsHalfWrittenIsRefusedAndThenRead(t *testing.T) {
	file := filepath.Join(tree(t, map[string]string{"a.yaml": document("a", 1)}), "a.yaml")
	l, _, log := start(t, reload.Options{Paths: []string{file}}, true)
	whole := document("a", 2)
	half := whole[:len(whole)-5]
	f := must.Get(os.Create(file))(t)
	defer func() { _ = f.Close() }()
	must.Get(f.WriteString(half))(t)
	log.await(t, "rules refused", "rules loaded")
	if got := requests(l, "a"); got != 1 {
		t.Errorf("requests in force while it is written: got %d, want those of before", got)
	}
	must.Get(f.WriteString(whole[len(half):]))(t)
	log.await(t, "rules loaded")
	if got := requests(l, "a"); got != 2 {
		t.Errorf("requests in force: got %d, want 2", got)
	}
}

func TestTheServedContentAgainClearsTheRefusal(t *testing.T) {
	file := filepath.Join(tree(t, map[string]string{"a.yaml": document("a", 1)}), "a.yaml")
	_, r, log := start(t, reload.Options{Paths: []string{file}}, true)
	write(t, file, "domain: [")
	log.await(t, "rules refused")
	write(t, file, document("a", 1))
	log.await(t, "rules loaded")
	if got := r.Status().Errors; len(got) != 0 {
		t.Errorf("errors: got %q, want none", got)
	}
}

// configMap lays rules out as the kubelet does: the files are links into ..data, which is a link to
// a directory of that version. Another call swaps the version in one step and removes the one
// before.
func configMap(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "..data")
	before, _ := os.Readlink(data)
	check(os.Mkdir(filepath.Join(dir, "..2026_"+version), 0o700))
	for name, content := range files {
		check(os.WriteFile(filepath.Join(dir, "..2026_"+version, name), []byte(content), 0o600))
	}
	check(os.Symlink("..2026_"+version, filepath.Join(dir, "..data_tmp")))
	check(os.Rename(filepath.Join(dir, "..data_tmp"), data))
	for name := range files {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			check(os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
		}
	}
	if before != "" {
		check(os.RemoveAll(filepath.Join(dir, before)))
	}
}

func TestAConfigMapSwapIsOneReload(t *testing.T) {
	dir := t.TempDir()
	configMap(t, dir, "1", map[string]string{"a.yaml": document("a", 1), "b.yaml": document("b", 1)})
	tests := []struct {
		name  string
		paths []string
	}{
		{"directory", []string{dir}},
		{"files", []string{filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")}},
	}
	version := 1
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l, r, log := start(t, reload.Options{Paths: test.paths}, true)
			for swap := range uint64(3) {
				version++
				configMap(t, dir, string(rune('0'+version)), map[string]string{
					"a.yaml": document("a", version), "b.yaml": document("b", version),
				})
				log.await(t, "rules loaded", "rules refused")
				if got := []int{requests(l, "a"), requests(l, "b")}; !cmp.Equal(got, []int{version, version}) {
					t.Errorf("requests in force: got %v, want %d twice", got, version)
				}
				wantUnchanged(t, log, filepath.Join(dir, "a.yaml"))
				wantLoads(t, r, swap+2, 0)
			}
		})
	}
}

func TestADirectoryThatVanishesKeepsItsRulesAndSaysSo(t *testing.T) {
	top := tree(t, map[string]string{"rules/a.yaml": document("a", 1)})
	dir := filepath.Join(top, "rules")
	l, r, log := start(t, reload.Options{Paths: []string{dir}}, true)
	must.Do(t, os.Rename(dir, dir+".old"))
	log.await(t, "rules refused")
	if got := requests(l, "a"); got != 1 {
		t.Errorf("requests in force: got %d, want those of before", got)
	}
	must.Match(t, "errors", []string{dir + ": no such file or directory"}, r.Status().Errors)
	next := tree(t, map[string]string{"a.yaml": document("a", 2)})
	must.Do(t, os.Rename(next, dir))
	log.await(t, "rules loaded")
	// The new directory is watched, and not the old one.
	write(t, filepath.Join(dir, "a.yaml"), document("a", 3))
	log.await(t, "rules loaded")
	if got := requests(l, "a"); got != 3 {
		t.Errorf("requests in force: got %d, want 3", got)
	}
}

func TestALinkToAnotherDirectoryIsAReload(t *testing.T) {
	top := tree(t, map[string]string{"v1/a.yaml": document("a", 1), "v2/a.yaml": document("a", 2)})
	link := filepath.Join(top, "current")
	must.Do(t, os.Symlink("v1", link))
	l, _, log := start(t, reload.Options{Paths: []string{link}}, true)
	must.Do(t, os.Symlink("v2", link+".next"))
	must.Do(t, os.Rename(link+".next", link))
	log.await(t, "rules loaded")
	write(t, filepath.Join(top, "v2", "a.yaml"), document("a", 3))
	log.await(t, "rules loaded")
	if got := requests(l, "a"); got != 3 {
		t.Errorf("requests in force: got %d, want 3", got)
	}
}

func TestInlineRulesAreWatched(t *testing.T) {
	inline := func(requests string) string {
		return "domains:\n- domain: a\n  descriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: " + requests + "}\n"
	}
	file := filepath.Join(tree(t, map[string]string{"weir.yaml": inline("1")}), "weir.yaml")
	l, _, log := start(t, reload.Options{Settings: file}, true)
	write(t, file, inline("2"))
	log.await(t, "rules loaded")
	if got := requests(l, "a"); got != 2 {
		t.Errorf("requests in force: got %d, want 2", got)
	}
}

func TestAnEmptyDirectoryIsNotRulesForNobody(t *testing.T) {
	dir := tree(t, map[string]string{"a.yaml": document("a", 1)})
	l, _, log := start(t, reload.Options{Paths: []string{dir}}, true)
	must.Do(t, os.Remove(filepath.Join(dir, "a.yaml")))
	log.await(t, "rules refused")
	if got := requests(l, "a"); got != 1 {
		t.Errorf("requests in force: got %d, want those of before", got)
	}
}
