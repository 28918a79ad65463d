package page

import (
	"io/fs"
	"testing"
)

// Everything that a browser loads: 150 KB at most, without compression.
func TestThePageIsSmall(t *testing.T) {
	f := newPage(t, nil)
	all := len(text(t, f.ask("GET", "/", "")))
	assets, err := fs.Glob(files, "assets/*")
	if err != nil || len(assets) < 3 {
		t.Fatalf("assets: %v, %v", assets, err)
	}
	for _, name := range assets {
		all += len(text(t, f.ask("GET", "/"+name, "")))
	}
	if all > 150_000 {
		t.Errorf("the page has %d bytes, want at most 150000", all)
	}
	t.Logf("%d bytes", all)
}
