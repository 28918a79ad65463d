// Package lockfile locks files and directories against other processes.
package lockfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/weirproxy/weir/internal/regular"
)

// ErrHeld is wrapped by an error about a lock that another process holds.
var ErrHeld = errors.New("another process holds it")

// timeout bounds the wait for another process.
const timeout = 3 * time.Second

// Lock is a locked file. All methods are safe for concurrent use. Unlock must be called once.
type Lock struct{ file *os.File }

// Wait locks path+".lock" until Unlock, or until the process ends. Wait waits at most 3 s, or until
// ctx ends, for another process.
//
// Only this user can open the file: its mode is 0600. Others can hold the lock of a file that they
// own, or may read. Wait locks such a file, and then replaces it by a new one. Any other kind of
// file is an error.
func Wait(ctx context.Context, path string) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for {
		l, err := Try(path)
		if !errors.Is(err, ErrHeld) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-retry.C:
		}
	}
}

// Try is Wait that waits for nobody: a lock that another process holds is an error at once.
func Try(path string) (*Lock, error) {
	path += ".lock"
	l, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return l, nil
}

// attempts bounds how often open meets a file that another process has just replaced.
const attempts = 5

func open(path string) (*Lock, error) {
	for range attempts {
		l, err := openOnce(path)
		if err != nil || l != nil {
			return l, err
		}
	}
	return nil, fmt.Errorf("%w: it replaces the file again and again", ErrHeld)
}

// openOnce returns nil where the path has got another file meanwhile.
func openOnce(path string) (*Lock, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600) // a pipe would wait for a writer
	if err != nil {
		return nil, regular.Bare(err)
	}
	l := &Lock{file}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("must be a regular file: remove it")
	}
	if err == nil {
		err = flock(file, info)
	}
	if err == nil && !private(info) && l.Held() == nil {
		if err = os.Remove(path); err != nil {
			err = fmt.Errorf("others can hold it: %w", regular.Bare(err))
		}
	}
	if err != nil || l.Held() != nil {
		return nil, errors.Join(err, file.Close())
	}
	return l, nil
}

func flock(file *os.File, info fs.FileInfo) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
		return err
	case private(info):
		return ErrHeld
	default:
		return fmt.Errorf("%w, maybe of another user: the file has mode %v, and belongs to user %d", ErrHeld, info.Mode(), owner(info))
	}
}

// private reports whether no other user can open the file.
func private(info fs.FileInfo) bool {
	return info.Mode().Perm()&0o077 == 0 && owner(info) == os.Geteuid()
}

// owner returns the user of a file, -1 where the system does not say it.
func owner(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

// Held returns an error when the path no longer leads to the locked file, as after somebody has
// removed it. Then another process can lock the path.
func (l *Lock) Held() error { return regular.InPlace(l.file.Name(), l.file) }

// Unlock lets another process lock the file, which stays.
func (l *Lock) Unlock() { _ = l.file.Close() } // closing unlocks
