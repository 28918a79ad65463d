package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/wire/certificates"
)

// A file that is no token in place of the token admits nobody: neither with the old token nor with
// an empty one.
func TestATokenThatCannotBeReadAdmitsNobody(t *testing.T) {
	const first, second = "the-first-token-0123", "the-second-token-0123"
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) func() error {
		return func() error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	synctest.Test(t, func(t *testing.T) {
		must.Do(t, write(first)())
		log := new(logtest.Log)
		file := &tokenFile{file: certificates.File{Name: "admin-token-file", Path: path}, logger: slog.New(slog.NewTextHandler(log, nil))}
		if err := file.read(time.Now()); err != nil || file.token() != first {
			t.Fatalf("token %q, %v", file.token(), err)
		}
		for _, step := range []struct {
			name string
			do   func() error
			want string
		}{
			{"empty", write(""), ""},
			{"another", write(second + "\r\n"), second},
			{"short", write("short"), ""},
			{"white space", write("                      \n"), ""},
			{"two lines", write(first + "\n" + second), ""},
			{"vanished", func() error { return os.Remove(path) }, ""},
			{"a directory", func() error { return os.Mkdir(path, 0o700) }, ""},
			{"gone again", func() error { return os.Remove(path) }, ""},
			{"a pipe without a writer", func() error { return syscall.Mkfifo(path, 0o600) }, ""},
			{"no pipe", func() error { return os.Remove(path) }, ""},
			{"the first", write(first), first},
		} {
			before := file.token()
			must.Do(t, step.do())
			if got := file.token(); got != before {
				t.Errorf("%s: %q within the same second, want %q", step.name, got, before)
			}
			time.Sleep(tokenAge)
			if got := file.token(); got != step.want {
				t.Errorf("%s: %q, want %q", step.name, got, step.want)
			}
		}
	})
}
