package app

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/internal/testing/must"
)

func mustListen(t *testing.T, network, address string, mode fs.FileMode) net.Listener {
	t.Helper()
	l := must.Get(listenOn(t.Context(), network, address, mode))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// reach connects to a listener and fails unless it answers.
func reach(t *testing.T, l net.Listener) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), l.Addr().Network(), l.Addr().String())
	if err != nil {
		t.Fatalf("connect to %v: %v", l.Addr(), err)
	}
	_ = conn.Close()
}

func TestListenOnIPv6(t *testing.T) {
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skipf("there is no IPv6: %v", err)
	} else {
		_ = l.Close()
	}
	reach(t, mustListen(t, "tcp", "[::1]:0", 0))
	for _, address := range []string{"[::]:0", ":0"} {
		l := mustListen(t, "tcp", address, 0)
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{"127.0.0.1", "::1"} {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
			if err != nil {
				t.Errorf("%s, by %s: %v", address, host, err)
				continue
			}
			_ = conn.Close()
		}
	}
}

func TestASharedAddressNeedsTheOptionOnEveryListener(t *testing.T) {
	shared := func(address string) net.Listener {
		t.Helper()
		l := must.Get(listenShared(t.Context(), address))(t)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	first := shared("127.0.0.1:0")
	second := shared(first.Addr().String())
	reach(t, first)
	if _, err := listenOn(t.Context(), "tcp", first.Addr().String(), 0); err == nil {
		t.Error("listening without the option: got no error")
	}
	// Connections after the first Close go to the second listener.
	_ = first.Close()
	accepted := make(chan error, 1)
	go func() {
		conn, err := second.Accept()
		if err == nil {
			err = conn.Close()
		}
		accepted <- err
	}()
	reach(t, second)
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	alone := mustListen(t, "tcp", "127.0.0.1:0", 0)
	if _, err := listenShared(t.Context(), alone.Addr().String()); err == nil {
		t.Error("listening on an address without the option: got no error")
	}
}

func TestListenOnAnAbstractSocket(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has abstract sockets")
	}
	name := "@weir-" + strings.ReplaceAll(t.TempDir(), "/", "-")
	reach(t, mustListen(t, "unix", name, 0o600))
	if _, err := listenOn(t.Context(), "unix", name, 0o600); err == nil {
		t.Error("the same name again: got no error; want one")
	}
}

func TestSocketHasItsModeAndGoesWithTheListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, mode := range []fs.FileMode{0o660, 0o600, 0o777} {
		l := mustListen(t, "unix", path, mode)
		reach(t, l)
		info := must.Get(os.Stat(path))(t)
		if got := info.Mode().Perm(); got != mode {
			t.Errorf("mode: got %v; want %v", got, mode)
		}
		must.Do(t, l.Close())
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("the file after Close: got %v; want none", err)
		}
	}
}

func TestClosingLeavesTheSocketOfASuccessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old := mustListen(t, "unix", path, 0o660)
	must.Do(t, os.Remove(path))
	successor := mustListen(t, "unix", path, 0o660)
	for range 2 {
		_ = old.Close() // the second one fails
		reach(t, successor)
	}
	must.Do(t, successor.Close())
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the file after both are closed: got %v; want none", err)
	}
}

func TestOneOfManyStartsGetsAStaleSocket(t *testing.T) {
	for range 30 {
		path := filepath.Join(t.TempDir(), "s")
		leave(t, path)
		var (
			starts sync.WaitGroup
			mu     sync.Mutex // guards got
			got    []net.Listener
		)
		for range 8 {
			starts.Go(func() {
				if l, err := listenOn(t.Context(), "unix", path, 0o660); err == nil {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, l)
				}
			})
		}
		starts.Wait()
		if len(got) != 1 {
			t.Errorf("listeners: got %d; want 1", len(got))
		}
		for _, l := range got {
			reach(t, l)
			_ = l.Close()
		}
	}
}

func TestListenWaitsForTheLockOfAnotherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	lock := must.Get(lockfile.Wait(t.Context(), path))(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := listenOn(ended, "unix", path, 0o660); err == nil || !strings.Contains(err.Error(), "another process holds it") {
		t.Errorf("listenOn: got %v; want an error about the lock", err)
	}
	lock.Unlock()
	reach(t, mustListen(t, "unix", path, 0o660))
}

// A program that may write to the directory can put a pipe there, or hold a file of its own.
func TestAStopWaitsForNoFileOfOthers(t *testing.T) {
	for name, spoil := range map[string]func(lock string) error{
		"a pipe": func(lock string) error { return syscall.Mkfifo(lock, 0o600) },
		"a file that somebody holds": func(lock string) error {
			other, err := os.Create(lock)
			if err == nil {
				t.Cleanup(func() { _ = other.Close() })
				err = syscall.Flock(int(other.Fd()), syscall.LOCK_EX)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l := must.Get(listenOn(t.Context(), "unix", path, 0o660))(t)
			must.Do(t, os.Remove(path+".lock"))
			must.Do(t, spoil(path+".lock"))
			if err := l.Close(); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Close: got %v, want an error about the lock at once", err)
			}
			if _, err := net.Dial("unix", path); err == nil { //nolint:noctx // a refused connection takes no time
				t.Error("somebody still listens")
			}
		})
	}
}

// leave leaves a socket at path, as a killed process does.
func leave(t *testing.T, path string) {
	t.Helper()
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	must.Do(t, l.Close())
}

func TestAPathThatIsNoStaleSocketIsLeftAlone(t *testing.T) {
	used, file := filepath.Join(t.TempDir(), "used"), filepath.Join(t.TempDir(), "file")
	old := mustListen(t, "unix", used, 0o660)
	must.Do(t, os.WriteFile(file, []byte("precious"), 0o600))
	for path, want := range map[string]string{
		used: "another process answers on it", file: "not a socket",
		"/" + strings.Repeat("s", 200): "the path has 201 bytes, must have at most ",
	} {
		if _, err := listenOn(t.Context(), "unix", path, 0o660); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: got %v; want %s", path, err, want)
		}
	}
	reach(t, old)
	if got, err := os.ReadFile(file); err != nil || string(got) != "precious" {
		t.Errorf("the file after: got %q, %v; want it as it was", got, err)
	}
}
