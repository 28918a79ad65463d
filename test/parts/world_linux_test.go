package parts

import (
	"net"
	"os"
	"testing"
)

// namespace returns the number of a namespace of this process.
func namespace(t *testing.T, kind string) string {
	t.Helper()
	number, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// A process may mount only in a mount namespace that belongs to its user namespace. A test removes
// its temporary directory: a mount below it could lead to the files of the machine.
func TestAProcessOfAWorldCannotMount(t *testing.T) {
	const user, mounts = "TEST_USER_NAMESPACE", "TEST_MOUNT_NAMESPACE"
	if !InWorld(t, user+"="+namespace(t, "user"), mounts+"="+namespace(t, "mnt")) {
		return
	}
	if namespace(t, "user") == os.Getenv(user) {
		t.Error("the user is one of the machine")
	}
	if namespace(t, "mnt") != os.Getenv(mounts) {
		t.Error("the mounts are not those of the machine")
	}
}

// The ports that other projects choose are in use on many machines.
func TestAllPortsOfAWorldAreFree(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	const variable = "TEST_PORT"
	if !InWorld(t, variable+"="+taken.Addr().String()) {
		return
	}
	for _, address := range []string{os.Getenv(variable), "127.0.0.1:80", "[::1]:80"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Error(err)
			continue
		}
		_ = l.Close()
	}
}
