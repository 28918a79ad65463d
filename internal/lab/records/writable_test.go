package records

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weirproxy/weir/internal/testing/logtest"
)

// noFiles is a directory in which no file can be made.
type noFiles struct{ system }

func (noFiles) create(path string) (io.WriteCloser, error) {
	return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EACCES}
}

func TestADirectoryThatMustBeWritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir string
		files     files
		want      error
	}{
		{"a file", file, system{}, syscall.ENOTDIR},
		{"below a file", filepath.Join(file, "record"), system{}, syscall.ENOTDIR},
		{"without permission", t.TempDir(), noFiles{}, syscall.EACCES},
		{"writable", t.TempDir(), system{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := new(logtest.Log)
			r, err := newRecorder(t.Context(), Options{Dir: c.dir, Writable: true, Logger: slog.New(slog.NewTextHandler(log, nil))}, c.files)
			if !errors.Is(err, c.want) || (r == nil) != (c.want != nil) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), c.dir+": cannot record there: ") {
				t.Errorf("got %v, want the directory first", err)
			}
			if text := log.String(); text != "" {
				t.Errorf("the log says %s", text)
			}
			if all, _ := filepath.Glob(filepath.Join(c.dir, prefix+"*")); len(all) != 0 {
				t.Errorf("left %q", all)
			}
			if r != nil {
				r.out.close()
			}
		})
	}
}
