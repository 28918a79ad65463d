// Package version knows the version of the running binary: the linker's, or the one that Go stamps
// from version control.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// linked and revision are set with -ldflags '-X
// github.com/weirproxy/weir/internal/version.linked=v1.2.3', for a build without version control,
// such as in a container.
var linked, revision string //nolint:gochecknoglobals // the linker sets only variables of a package

// Build names a build. A field is "unknown" when neither the linker nor Go knows it.
type Build struct {
	Version  string // such as v1.2.3
	Revision string // of the source
}

// Read returns the build of the running binary.
func Read() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return of(info, linked, revision)
}

// String is one line for people.
func (b Build) String() string {
	return fmt.Sprintf("weir %s, commit %s, %s, %s/%s", b.Version, b.Revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// of returns the build of a binary. The linker's words win.
func of(info *debug.BuildInfo, linked, revision string) Build {
	stamped, modified := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			stamped = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				modified = " with changes"
			}
		}
	}
	if stamped != "" {
		stamped += modified
	}
	main := info.Main.Version
	if main == "(devel)" {
		main = ""
	}
	return Build{Version: cmp.Or(linked, main, "unknown"), Revision: cmp.Or(revision, stamped, "unknown")}
}
