package app

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

	"github.com/weirproxy/weir/internal/lockfile"
)

// listenOn listens on a TCP address ("host:port", port 0 takes any) for network "tcp", or on a Unix
// socket for network "unix": a path, or "@name" in Linux's abstract name space, which has no file.
//
// The file of a path gets the mode, and Close removes the file unless another process has replaced
// it. listenOn replaces a socket that no process answers on, as after a crash; a socket in use, and
// any other kind of file, is an error. The lock file path+".lock" stays: every process locks this
// file to make or remove the socket.
func listenOn(ctx context.Context, network, address string, mode fs.FileMode) (net.Listener, error) {
	if network != "unix" || strings.HasPrefix(address, "@") {
		return new(net.ListenConfig).Listen(ctx, network, address)
	}
	l, err := listenOnPath(ctx, address, mode)
	if err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", address, err)
	}
	return l, nil
}

// listenShared listens on a TCP address with SO_REUSEPORT: other processes of the same user may
// listen there too, if all of them set the option. The system spreads new connections over the
// processes; a process that closes its listener loses the connections that wait for it.
func listenShared(ctx context.Context, address string) (net.Listener, error) {
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
	if room := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > room {
		return nil, fmt.Errorf("the path has %d bytes, must have at most %d", len(path), room)
	}
	lock, err := lockfile.Wait(ctx, path)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// To connect takes the right to write: until here only the owner may connect, unless the umask is
	// 0.
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.SetUnlinkOnClose(false) // the standard library would also remove the socket of a successor
	return &socket{UnixListener: l, path: path, file: file}, nil
}

type socket struct {
	*net.UnixListener
	path   string
	file   fs.FileInfo // of the path when it was bound
	unlink sync.Once
}

// Close stops listening. The first Close removes the file, unless another process has replaced it.
func (s *socket) Close() error {
	var err error
	s.unlink.Do(func() { err = s.remove() })
	// Close the socket last: until then no other file can have its inode.
	return errors.Join(err, s.UnixListener.Close())
}

func (s *socket) remove() error {
	lock, err := lockfile.Try(s.path) // a stop waits for nobody
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the directory is gone, and the socket with it
	}
	if err != nil {
		return err // the next start replaces the socket
	}
	defer lock.Unlock()
	file, err := os.Lstat(s.path)
	if err != nil || !os.SameFile(file, s.file) {
		return nil //nolint:nilerr // the file is gone, or of a successor
	}
	return os.Remove(s.path)
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("a file that is not a socket is there")
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return errors.New("another process answers on it")
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("another process may be using it: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
