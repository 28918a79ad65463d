// Package lockfile locks files against other processes.
package lockfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ErrHeld is wrapped by the error of Lock when another process holds the lock for too long.
var ErrHeld = errors.New("another process holds it")

// timeout bounds the wait for another process.
const timeout = 3 * time.Second

// Lock locks path+".lock" until the caller calls unlock or the process ends. Lock waits at most 3 s
// for another process. The lock file must never be removed: a process that waits for the lock of a
// removed file would lock nothing.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f, err := os.OpenFile(path+".lock", os.O_RDONLY|os.O_CREATE|syscall.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, err
	}
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: %w: %w", f.Name(), ErrHeld, ctx.Err()), f.Close())
		case <-retry.C:
		}
	}
}
