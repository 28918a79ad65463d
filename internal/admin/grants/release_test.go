package grants

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirproxy/weir/internal/testing/must"
)

// Later versions read these lines of 0.1.0. 0.1.0 reads lines with members that only a later
// version has.
func TestLinesOfRelease010AreRead(t *testing.T) {
	const (
		number = `{"slot":"a","grant":{"id":"1","domain":"edge","entries":[["tenant","a"]],"requests":5,` +
			`"until":"2000-01-01T09:00:00Z","given":"2000-01-01T00:00:00Z","reason":"a test"},"sum":"6741356a"}`
		later = `{"slot":"b","grant":{"id":"2","domain":"edge","entries":[["tenant","b"]],"requests":6,` +
			`"until":"2000-01-01T09:00:00Z","given":"2000-01-01T00:00:00Z","reason":"a test","later":{"x":[1]}},"more":true,"sum":"975ad422"}`
	)
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		must.Do(t, os.WriteFile(filepath.Join(dir, "grants"), []byte(number+"\n"+later+"\n"), 0o600))
		p := in(t, dir)
		p.wantLimit(t, "a", 5)
		p.wantLimit(t, "b", 6)
		p.end()
		if strings.Contains(p.log.String(), "level=ERROR") {
			t.Errorf("the log has an error\n%s", &p.log)
		}
	})
}
