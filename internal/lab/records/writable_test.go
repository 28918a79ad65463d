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
	"github.com/weirproxy/weir/internal/testing/must"
)

func noFile(path string) (io.WriteCloser, error) {
	return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EACCES}
}

func TestADirectoryThatMustBeWritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct {
		name, dir string
		create    func(string) (io.WriteCloser, error)
		want      error
	}{
		{"a file", file, create, syscall.ENOTDIR},
		{"below a file", filepath.Join(file, "record"), create, syscall.ENOTDIR},
		{"without permission", t.TempDir(), noFile, syscall.EACCES},
		{"writable", t.TempDir(), create, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := new(logtest.Log)
			r, err := newRecorder(t.Context(), Options{Dir: c.dir, Writable: true, Logger: slog.New(slog.NewTextHandler(log, nil))}, c.create)
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
