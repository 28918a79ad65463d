package lockfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Directory is a directory for one process at a time. All methods are safe for concurrent use.
type Directory struct {
	path string // of the directory
	lock string // path of the lock, without its extension

	mu     sync.Mutex // guards the fields below
	held   *Lock      // nil without the lock
	tenure int
	closed bool
}

// NewDirectory returns the directory at a path. The file name+".lock" there is locked by Wait and
// Hold.
func NewDirectory(path, name string) *Directory {
	return &Directory{path: path, lock: filepath.Join(path, name)}
}

// Path returns the path of the directory.
func (d *Directory) Path() string { return d.path }

// Wait is Hold that waits for another process as [Wait] does.
func (d *Directory) Wait(ctx context.Context) (tenure int, err error) {
	return d.hold(func() (*Lock, error) { return Wait(ctx, d.lock) })
}

// Hold makes the directory with mode 0700 if it is missing, and locks it unless it is locked. The
// error wraps ErrHeld where another process has the directory. To be called before each write:
// somebody may have removed the directory, and another process may have made it anew.
//
// The tenure counts the locks from 1. Files from before it are of another process.
func (d *Directory) Hold() (tenure int, err error) {
	return d.hold(func() (*Lock, error) { return Try(d.lock) })
}

func (d *Directory) hold(lock func() (*Lock, error)) (tenure int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.tenure, os.ErrClosed
	}
	if d.held != nil {
		if d.held.Held() == nil {
			return d.tenure, nil
		}
		d.held.Unlock()
		d.held = nil
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return d.tenure, err
	}
	held, err := lock()
	if errors.Is(err, ErrHeld) && d.tenure > 0 {
		err = fmt.Errorf("the directory was replaced, and another process uses it now: %w", err)
	}
	if err != nil {
		return d.tenure, err
	}
	d.held = held
	d.tenure++
	return d.tenure, nil
}

// Close gives the directory to other processes. Hold fails afterwards.
func (d *Directory) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.held != nil {
		d.held.Unlock()
		d.held = nil
	}
}
