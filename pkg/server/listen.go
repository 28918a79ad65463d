package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listen listens on a TCP address ("host:port", port 0 takes any) for network "tcp", or on a Unix socket for network "unix":
// a path, or "@name" in Linux's abstract name space, which has no file.
//
// A path gets the mode, and is removed when the listener is closed, unless it is another's by then. A socket that is there
// already is replaced when nobody answers on it, as after a crash; one that somebody answers on, and any other kind of file,
// is an error. Beside it the file path+".lock" is made, and stays: whoever makes or removes the socket locks it meanwhile.
func Listen(ctx context.Context, network, address string, mode fs.FileMode) (net.Listener, error) {
	if network != "unix" || strings.HasPrefix(address, "@") {
		return new(net.ListenConfig).Listen(ctx, network, address)
	}
	l, err := listenOnPath(ctx, address, mode)
	if err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", address, err)
	}
	return l, nil
}

// ListenShared listens on a TCP address on which other processes of the same user may listen too, as long as all of them do it
// in this way (SO_REUSEPORT). The system spreads new connections over them; one that stops listening takes along those that
// wait for it.
func ListenShared(ctx context.Context, address string) (net.Listener, error) {
	share := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = os.NewSyscallError("setsockopt SO_REUSEPORT", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		})
		return errors.Join(err, failed)
	}}
	return share.Listen(ctx, "tcp", address)
}

func listenOnPath(ctx context.Context, path string, mode fs.FileMode) (net.Listener, error) {
	unlock, err := lockPath(ctx, path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// Until here nobody but the owner may connect unless the umask is wide open: that takes the right to write.
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.SetUnlinkOnClose(false) // it would not look whose file that is
	return &socket{UnixListener: l, path: path, file: file}, nil
}

// socket is a listener on a path.
type socket struct {
	*net.UnixListener
	path   string
	file   fs.FileInfo // of the path when it was bound
	unlink sync.Once
}

// Close stops listening, and removes the file of the first Close if it is still the one that was made for this listener.
func (s *socket) Close() error {
	var err error
	s.unlink.Do(func() { err = s.remove() })
	// Not before: an open socket keeps its inode, so that no other file can have the same.
	return errors.Join(err, s.UnixListener.Close())
}

func (s *socket) remove() error {
	unlock, err := lockPath(context.Background(), s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nor is there a socket where there is no directory
	}
	if err != nil {
		return err // the next start replaces the socket
	}
	defer unlock()
	file, err := os.Lstat(s.path)
	if err != nil || !os.SameFile(file, s.file) {
		return nil //nolint:nilerr // gone, or a successor's
	}
	return os.Remove(s.path)
}

// lockPatience is the most time to wait for others that make or remove the same socket, which takes them a second at most.
const lockPatience = 3 * time.Second

// lockPath locks path+".lock" until unlock is called or the process ends. The file is never removed: who waits for a removed
// one would lock nothing.
func lockPath(ctx context.Context, path string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
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
			return func() { _ = f.Close() }, nil // which unlocks
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: somebody else holds it: %w", f.Name(), ctx.Err()), f.Close())
		case <-retry.C:
		}
	}
}

// removeStale removes a socket that nobody answers on.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is a file that is no socket")
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return errors.New("somebody else answers on it")
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("somebody else may be using it: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
