package parts

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Linux gives ports from 32768 up to outgoing connections. Lower ports stay free while a Redis
// restarts. A cluster node has a second port, its bus, busOffset above the first.
const (
	firstPort = 12000
	ports     = 10000
	busOffset = 10000
)

// FreeAddress returns a host:port of loopback for a program that starts again at the same address.
// No other caller on this machine gets the address until this process ends.
func FreeAddress() (string, error) {
	port, err := freePort()
	return loopback(port), err
}

// onFreeAddress calls listen with addresses of loopback until one of ten is free. Port 0 would not
// do: another socket could take the port before listen comes again, see firstPort.
func onFreeAddress(listen func(address string) error) error {
	var err error
	for range 10 {
		address, freeErr := FreeAddress()
		if freeErr != nil {
			return freeErr
		}
		if err = listen(address); err == nil {
			return nil
		}
	}
	return err
}

// freePort returns a port that is free now, as is the port busOffset above. No other call of
// freePort on this machine returns the port until this process ends, so a Redis finds its port free
// at a restart.
func freePort() (int, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("weir-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	var err error
	for range 100 {
		port := firstPort + rand.N(ports)
		if err = reserve(filepath.Join(dir, strconv.Itoa(port))); err != nil {
			continue
		}
		if err = probe(port); err == nil {
			if err = probe(port + busOffset); err == nil {
				return port, nil
			}
		}
	}
	return 0, fmt.Errorf("no free port from %d to %d: %w", firstPort, firstPort+ports-1, err)
}

// reserve locks a file until this process ends: the descriptor stays open on purpose. Programs that
// this process starts do not get the descriptor.
func reserve(path string) error {
	fd, err := syscall.Open(path, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = syscall.Close(fd)
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// probe returns the error of listening on a port.
func probe(port int) error {
	listener, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return err
	}
	return listener.Close()
}
