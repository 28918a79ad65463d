// Package regular opens, reads, makes and sets aside regular files. A pipe or a device in the place
// of a file never makes a program wait.
package regular

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// ErrKind is wrapped by the error about a directory, a pipe, a socket or a device.
var ErrKind = errors.New("must be a regular file")

// Open opens the file at a path for reading, and follows symbolic links.
func Open(path string) (*os.File, fs.FileInfo, error) { return open(path, 0) }

// OpenNoLink is Open without a symbolic link at the end of the path, which is an error.
func OpenNoLink(path string) (*os.File, fs.FileInfo, error) { return open(path, syscall.O_NOFOLLOW) }

func open(path string, flags int) (*os.File, fs.FileInfo, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|flags, 0) // a pipe would wait for a writer
	if errors.Is(err, syscall.ENXIO) {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrKind} // a socket, or a device that is away
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrKind}
	}
	if err != nil {
		_ = file.Close() // was not read
		return nil, nil, err
	}
	return file, info, nil
}

// Read reads the file at a path, and follows symbolic links. A file of more than that many bytes is
// an error, and is not read.
func Read(path string, most int) ([]byte, error) {
	file, info, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // was only read
	var data bytes.Buffer
	if info.Size() <= int64(most) {
		data.Grow(int(info.Size()) + bytes.MinRead)
		if _, err := data.ReadFrom(io.LimitReader(file, int64(most)+1)); err != nil {
			return nil, err
		}
	}
	if info.Size() > int64(most) || data.Len() > most {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("must have at most %d bytes", most)}
	}
	return data.Bytes(), nil
}

// Create makes a file of mode 0600 for writing, in place of any file, link, pipe or directory at
// the path.
func Create(path string) (*os.File, error) {
	if err := os.RemoveAll(path); err != nil { // a pipe never takes all
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// InPlace returns an error when a path leads to no file or another one than an open file, as after
// somebody has removed it.
func InPlace(path string, file *os.File) error {
	named, err := os.Lstat(path)
	if err != nil {
		return err
	}
	open, err := file.Stat()
	if err == nil && !os.SameFile(named, open) {
		err = fmt.Errorf("%s: another file has taken its place", path)
	}
	return err
}

// MaxRefused is the number of files that stay of the ones set aside.
const MaxRefused = 3

// Aside returns the path at which to set a file aside that cannot be read, by the time of now.
func Aside(path string) string {
	return path + ".refused-" + time.Now().UTC().Format("20060102T150405.000000000Z")
}

// DropRefused removes the oldest files that were set aside from a path.
func DropRefused(path string, remove func(string) error) error {
	all, err := filepath.Glob(path + ".refused-*")
	slices.Sort(all) // by time
	for ; len(all) > MaxRefused; all = all[1:] {
		err = errors.Join(err, remove(all[0]))
	}
	return err
}

// Bare drops the operation and the path of an error, for messages that begin with the path.
func Bare(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// SyncDir writes the names in a directory to the disk.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
