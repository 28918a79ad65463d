package hostile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// containerLimit is the memory limit of deploy/k8s, in bytes.
const containerLimit = 256 << 20

// A cgroup is a memory cgroup with containerLimit, below the cgroup of this process.
type cgroup struct {
	dir string
	v2  bool
}

// newCgroup makes a cgroup that ends with the test. An error says why the kernel does not let it.
func newCgroup(t *testing.T) (*cgroup, error) {
	t.Helper()
	parent, v2, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	if v2 {
		if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return nil, fmt.Errorf("delegation: %w", err)
		}
	}
	dir, err := os.MkdirTemp(parent, "weir-hostile-") //nolint:usetesting // a cgroup is a directory of its own file system
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil { // rmdir: the files of a cgroup go with it
			t.Errorf("remove the cgroup: %v", err)
		}
	})
	c := &cgroup{dir, v2}
	limits := map[string]bool{"memory.limit_in_bytes": true, "memory.memsw.limit_in_bytes": false} // the second only where swap counts
	if v2 {
		limits = map[string]bool{"memory.max": true}
	}
	for name, must := range limits {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strconv.Itoa(containerLimit)), 0); err != nil && must {
			return nil, err
		}
	}
	if v2 {
		_ = os.WriteFile(filepath.Join(dir, "memory.swap.max"), []byte("0"), 0) // only where swap counts
	}
	return c, nil
}

// ownCgroup returns the folder of this process's memory cgroup, and whether the folder is of
// version 2.
func ownCgroup() (dir string, v2 bool, err error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number:controllers:path
		if len(fields) != 3 {
			continue
		}
		if isV1 := strings.Contains(","+fields[1]+",", ",memory,"); isV1 {
			return filepath.Join("/sys/fs/cgroup/memory", fields[2]), false, nil
		}
		if own := filepath.Join("/sys/fs/cgroup", fields[2]); fields[1] == "" && hasMemory(own) {
			dir, v2 = own, true
		}
	}
	if dir == "" {
		return "", false, errors.New("this process is in no cgroup for memory")
	}
	return dir, v2, nil
}

// hasMemory reports whether the folder of a cgroup of version 2 may limit memory.
func hasMemory(dir string) bool {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	return err == nil && strings.Contains(" "+strings.TrimSpace(string(controllers))+" ", " memory ")
}

// enter is a line of a shell script that moves the shell into the cgroup.
func (c *cgroup) enter() string { return fmt.Sprintf("echo $$ >%s/cgroup.procs", c.dir) }

// peak returns the largest use so far, in bytes: the processes, their files in the page cache, and
// kernel memory. 0 where the kernel does not say.
func (c *cgroup) peak() int64 {
	name := "memory.max_usage_in_bytes"
	if c.v2 {
		name = "memory.peak" // since Linux 5.19
	}
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		return 0
	}
	bytes, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return bytes
}
