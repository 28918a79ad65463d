package parts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// worldVariable is set in a process that InWorld started.
const worldVariable = "WEIR_TEST_WORLD"

// InWorld reports whether this process has a world of its own. A world has a network with nothing
// but a loopback, so that all ports are free, and its processes may change their root directory. A
// world has the mounts of this machine, and the kernel lets no process of a world change them.
//
// In such a process the caller goes on. Elsewhere InWorld runs the calling test there, in a new
// process of this binary with that environment, and fails as the test does. Without namespaces
// the test skips, or fails where WEIR_REQUIRE names namespaces.
func InWorld(t *testing.T, environ ...string) bool {
	t.Helper()
	if os.Getenv(worldVariable) != "" {
		if err := startLoopback(); err != nil {
			t.Fatal(err)
		}
		return true
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	c := exec.CommandContext(t.Context(), binary, "-test.run="+name, "-test.v", "-test.count=1", "-test.timeout=0")
	c.Env = append([]string{worldVariable + "=1", "GORACE=atexit_sleep_ms=0"}, environ...)
	root := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
	}
	// Without a mount namespace of its own the new user may mount nothing.
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: root(os.Getuid()), GidMappings: root(os.Getgid()),
		Pdeathsig: syscall.SIGKILL,
	}
	var out bytes.Buffer
	c.Stdout = &out
	if testing.Verbose() {
		c.Stdout = io.MultiWriter(&out, t.Output())
	}
	c.Stderr = c.Stdout
	err = c.Run()
	var ended *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &ended):
		if Required("namespaces") {
			t.Fatalf("namespaces: %v", err)
		}
		t.Skipf("there are no namespaces to be had: %v", err)
	case err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()):
		t.Errorf("%v\n%s", err, out.String())
	}
	return false
}

// startLoopback switches 127.0.0.1 and ::1 on, which a new network namespace has switched off.
func startLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("loopback", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
}
