package page

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// maxPicture is the largest picture of the documents, in bytes.
const maxPicture = 200 << 10

// names are the pictures of the documents.
var names = []string{"page-now.png", "page-rule.png", "page-requests.png", "page-narrow.png"}

// TestPictures makes the pictures of the page for the documents anew: PICTURES is the time of the
// traffic before the first, such as 3m. `make pictures` runs it.
func TestPictures(t *testing.T) {
	wait, err := time.ParseDuration(os.Getenv("PICTURES"))
	if err != nil {
		t.Skip("PICTURES is not a time, such as 3m: the pictures stay")
	}
	w := serve(t, shop)
	traffic(t, throughEnvoy(t, w))
	to := func(name string) string { return filepath.Join(parts.RootFor(t), "docs", "images", name) }
	b := open(t)
	b.size(1280, 860)
	b.show("http://" + w.Admin + "/")
	b.awaitText("#verdict", "most of these for")
	time.Sleep(wait)
	b.shot(to("page-now.png"), false)
	b.click("#rules-rows > tr .open")
	b.awaitText("#rules-rows .detail", "client_id=alice")
	b.size(1280, 640)
	b.do(scroll("#rules"))
	b.await("document.querySelector('#rules-rows .detail .bar .full') !== null")
	b.shot(to("page-rule.png"), false)
	b.do(scroll("#tail"))
	b.await("document.querySelectorAll('#tail-rows tr').length > 20")
	b.shot(to("page-requests.png"), false)
	b.dark(true)
	b.size(360, 800)
	b.do(scroll("#now"))
	time.Sleep(time.Second) // the next state
	b.shot(to("page-narrow.png"), false)
}

// The documents show pictures that load fast.
func TestPicturesAreSmall(t *testing.T) {
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(parts.RootFor(t), "docs", "images", name))
		if err != nil {
			t.Errorf("%v: make it with `make pictures`", err)
			continue
		}
		if len(data) > maxPicture {
			t.Errorf("%s has %d bytes, want at most %d", name, len(data), maxPicture)
		}
		if _, err := png.Decode(bytes.NewReader(data)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
