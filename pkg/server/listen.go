package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// Listen listens on a TCP address ("host:port", port 0 takes any) for network "tcp", or on a Unix socket for network "unix":
// a path, or "@name" in Linux's abstract name space, which has no file.
//
// A path gets the mode, and is removed when the listener is closed. A socket that is there already is replaced when nobody
// answers on it, as after a crash; one that somebody answers on, and any other kind of file, is an error.
func Listen(ctx context.Context, network, address string, mode fs.FileMode) (net.Listener, error) {
	var config net.ListenConfig
	if network != "unix" || strings.HasPrefix(address, "@") {
		return config.Listen(ctx, network, address)
	}
	l, err := config.Listen(ctx, network, address)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(ctx, address); err != nil {
			return nil, fmt.Errorf("listen on unix socket %s: %w", address, err)
		}
		l, err = config.Listen(ctx, network, address)
	}
	if err != nil {
		return nil, err
	}
	// Until here nobody but the owner may connect unless the umask is wide open: that takes the right to write.
	if err := os.Chmod(address, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on unix socket: %w", err), l.Close())
	}
	return l, nil
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
