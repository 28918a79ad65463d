// Package zones has the time zones of the IANA database, embedded in the program.
//
// [time.LoadLocation] prefers the files of the host. Two hosts with other files would begin a
// window at two instants, and would give its hits twice. So this package never reads the host's
// files.
package zones

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	_ "embed" // for files
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/spelling"
)

// Version is the release of the IANA database.
const Version = "2026f"

//go:embed zones.tar.gz
var files []byte // by name; equal files stand side by side, which makes the archive small

// ErrUnknown is the error of [Database.Zone] for a name that the database does not have.
var ErrUnknown = errors.New("the database has no time zone of that name")

// Load returns a zone as [Database.Zone] does. Load takes a few milliseconds, as it opens the
// database.
func Load(name string) (*time.Location, error) {
	d, err := Open()
	if err != nil {
		return nil, err
	}
	return d.Zone(name)
}

// Database is all zones, for many names: it reads the embedded files once, and takes their memory.
type Database struct{ files map[string][]byte }

// Open returns the database. Open takes a few milliseconds.
func Open() (*Database, error) {
	d := &Database{files: make(map[string][]byte)}
	unzipped, err := gzip.NewReader(bytes.NewReader(files))
	if err != nil {
		return nil, fmt.Errorf("time zones: %w", err)
	}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return d, nil
		}
		if err == nil {
			d.files[h.Name], err = io.ReadAll(r)
		}
		if err != nil {
			return nil, fmt.Errorf("time zones: %w", err)
		}
	}
}

// Zone returns the zone of an IANA name, such as Europe/Berlin; capitals matter. UTC is [time.UTC],
// and any other result is another one at each call. The error of an unknown name wraps ErrUnknown.
func (d *Database) Zone(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	data, known := d.files[name]
	if !known {
		return nil, fmt.Errorf("time zone %q: %w", name, ErrUnknown)
	}
	return time.LoadLocationFromTZData(name, data)
}

// Nearest returns the name that was probably meant by another one, "" for none: a slip of the pen,
// or a place without its continent.
func (d *Database) Nearest(name string) string {
	if len(name) > spelling.MaxBytes {
		return ""
	}
	var names []string
	meant := strings.ReplaceAll(strings.TrimSpace(name), " ", "_")
	place := ""
	for _, known := range slices.Sorted(maps.Keys(d.files)) {
		if strings.HasPrefix(known, "Etc/") || strings.HasPrefix(known, "GMT") { // Etc/GMT+2 is two hours behind, not ahead
			continue
		}
		names = append(names, known)
		if place == "" && strings.EqualFold(meant, known[strings.LastIndexByte(known, '/')+1:]) {
			place = known
		}
	}
	return cmp.Or(place, spelling.Nearest(meant, names, len(meant)/5))
}
