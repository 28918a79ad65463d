package zones_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/zones"
)

var update = flag.Bool("update", false, "write zones.tar.gz anew")

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/ranges", "internal/spelling"}, Third: []string{}})
}

// The claim of the package: a host with other files has no say.
func TestTheFilesOfTheHostAreNotRead(t *testing.T) {
	berlin := must.Get(zones.Load("Europe/Berlin"))(t)
	at := time.Date(2026, 7, 1, 0, 0, 0, 0, berlin)
	if name, offset := at.Zone(); name != "CEST" || offset != 7200 {
		t.Errorf("Berlin in summer: %s %d", name, offset)
	}
	for _, name := range []string{"Local", "", "../etc/passwd", "localtime", "Factory", "europe/berlin", "+VERSION", "zone.tab"} {
		if _, err := zones.Load(name); !errors.Is(err, zones.ErrUnknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if utc := must.Get(zones.Load("UTC"))(t); utc != time.UTC {
		t.Error("UTC is not time.UTC")
	}
}

func TestANameThatIsNearAZoneIsFound(t *testing.T) {
	database := must.Get(zones.Open())(t)
	for name, want := range map[string]string{
		"Europe/Berln": "Europe/Berlin", "europe/berlin": "Europe/Berlin", "Berlin": "Europe/Berlin", "America/New York": "America/New_York",
		"kathmandu": "Asia/Kathmandu", "Mars/Olympus": "", "": "", "GMT+2": "", "PST": "",
	} {
		if got := database.Nearest(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

// The archive has every zone of its source and nothing else. With -update the test writes it.
func TestTheZonesAreThoseOfTheirSource(t *testing.T) {
	if testing.Short() {
		t.Skip("fetches the source")
	}
	var why bytes.Buffer
	script := exec.Command("../../scripts/zones.sh")
	script.Stderr = &why
	path, err := script.Output()
	switch {
	case err != nil && os.Getenv("CI") != "":
		t.Fatal(why.String())
	case err != nil:
		t.Skip(why.String())
	}
	want, version := source(t, strings.TrimSpace(string(path)))
	if *update {
		write(t, want)
	}
	got := make(map[string]string)
	unzipped := must.Get(gzip.NewReader(bytes.NewReader(must.Get(os.ReadFile("zones.tar.gz"))(t))))(t)
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.Do(t, err)
		got[h.Name] = string(must.Get(io.ReadAll(r))(t))
	}
	if !maps.Equal(got, want) || zones.Version != version {
		t.Errorf("%d zones of %s, but the source has %d of %s, or others: run the test with -update",
			len(got), zones.Version, len(want), version)
	}
	database := must.Get(zones.Open())(t)
	for name := range want {
		if _, err := database.Zone(name); err != nil {
			t.Error(err)
		}
	}
}

// source returns the zone files in a wheel, and the release of the IANA database.
func source(t *testing.T, wheel string) (files map[string]string, version string) {
	t.Helper()
	files = make(map[string]string)
	archive := must.Get(zip.OpenReader(wheel))(t)
	defer archive.Close()
	for _, f := range archive.File {
		text := string(must.Get(io.ReadAll(must.Get(f.Open())(t)))(t))
		name, isZone := strings.CutPrefix(f.Name, "tzdata/zoneinfo/")
		if isZone && strings.HasPrefix(text, "TZif") && name != "Factory" { // which stands for an unknown zone
			files[name] = text
		}
		if f.Name == "tzdata/__init__.py" {
			_, version, _ = strings.Cut(text, "IANA_VERSION = ")
		}
	}
	return files, strings.Trim(strings.TrimSpace(version), `"`)
}

func write(t *testing.T, files map[string]string) {
	t.Helper()
	var archive bytes.Buffer
	zipped := must.Get(gzip.NewWriterLevel(&archive, gzip.BestCompression))(t)
	to := tar.NewWriter(zipped)
	names := slices.SortedFunc(maps.Keys(files), func(a, b string) int {
		return cmp.Or(cmp.Compare(files[a], files[b]), cmp.Compare(a, b))
	})
	for _, name := range names {
		must.Do(t, to.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}))
		_ = must.Get(to.Write([]byte(files[name])))(t)
	}
	must.Do(t, errors.Join(to.Close(), zipped.Close()))
	must.Do(t, os.WriteFile("zones.tar.gz", archive.Bytes(), 0o644))
}
