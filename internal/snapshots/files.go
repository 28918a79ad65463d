package snapshots

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/weirproxy/weir/internal/regular"
)

// files is the operations that change the directory; a test lets them fail.
type files interface {
	create(path string) (file, error) // of mode 0600; replaces any file there
	rename(from, to string) error
	remove(path string) error
	syncDir(path string) error
}

type file interface {
	io.WriteCloser
	Sync() error
}

// system is the files of the operating system.
type system struct{}

func (system) create(path string) (file, error) { return regular.Create(path) }
func (system) rename(from, to string) error     { return os.Rename(from, to) }
func (system) remove(path string) error         { return os.Remove(path) }
func (system) syncDir(path string) error        { return regular.SyncDir(path) }

type counter struct {
	to    io.Writer
	bytes int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.bytes += int64(n)
	return n, err
}

// replaceLocked gives the file at path another content, in one step. The bytes go to the disk
// before the file gets its name, so no crash leaves half a file there. A failure leaves no new
// file. mu must be held, and the directory.
func (k *Keeper) replaceLocked(path string, fill func(to io.Writer) error) error {
	f, fresh := k.files, path+".new"
	to, err := f.create(fresh)
	if err != nil {
		return err
	}
	if err = fill(to); err == nil {
		err = to.Sync()
	}
	err = errors.Join(err, to.Close())
	switch tenure, lost := k.options.Dir.Hold(); { // the files there may be of another process by now
	case lost != nil:
		return errors.Join(err, lost)
	case tenure != k.tenure:
		return errors.Join(err, errors.New("the directory was replaced meanwhile"))
	}
	if err == nil {
		err = f.rename(fresh, path)
	}
	if err != nil {
		return errors.Join(err, f.remove(fresh))
	}
	return f.syncDir(filepath.Dir(path))
}

// setAside gives the file at path another name, and removes the oldest files that were set aside.
func setAside(f files, path string) (aside string, err error) {
	aside = regular.Aside(path)
	if err := f.rename(path, aside); err != nil {
		return "", err
	}
	if err := regular.DropRefused(path, f.remove); err != nil {
		return aside, err
	}
	return aside, f.syncDir(filepath.Dir(path))
}
