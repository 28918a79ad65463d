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
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/spelling"
)

// Version is the release of the IANA database.
const Version = "2026f"

//go:embed zones.tar.gz
var files []byte // by name; equal files stand side by side, which makes the archive small

// ErrUnknown is the error of [Load] for a name that the database does not have.
var ErrUnknown = errors.New("the database has no time zone of that name")

// Load returns the zone of an IANA name, such as Europe/Berlin; capitals matter. UTC is [time.UTC].
// Load takes a few milliseconds, as it reads the database from its beginning.
func Load(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	var data []byte
	var failed error
	err := each(func(known string, file io.Reader) bool {
		if known == name {
			data, failed = io.ReadAll(file)
		}
		return known == name
	})
	switch err = cmp.Or(err, failed); {
	case err != nil:
		return nil, fmt.Errorf("time zone %q: %w", name, err)
	case data == nil:
		return nil, fmt.Errorf("time zone %q: %w", name, ErrUnknown)
	}
	return time.LoadLocationFromTZData(name, data)
}

// Nearest returns the name that was probably meant by another one, "" for none: a slip of the pen,
// or a place without its continent.
func Nearest(name string) string {
	var names []string
	meant := strings.ReplaceAll(strings.TrimSpace(name), " ", "_")
	place := ""
	_ = each(func(known string, _ io.Reader) bool { // the error of Load, for every name
		if strings.HasPrefix(known, "Etc/") || strings.HasPrefix(known, "GMT") { // Etc/GMT+2 is two hours behind, not ahead
			return false
		}
		names = append(names, known)
		if strings.EqualFold(meant, known[strings.LastIndexByte(known, '/')+1:]) {
			place = known
		}
		return false
	})
	return cmp.Or(place, spelling.Nearest(meant, names, len(meant)/5))
}

// each calls do for each zone and its file, until the result is true.
func each(do func(name string, file io.Reader) bool) error {
	unzipped, err := gzip.NewReader(bytes.NewReader(files))
	if err != nil {
		return err
	}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil || do(h.Name, r) {
			return err
		}
	}
}
