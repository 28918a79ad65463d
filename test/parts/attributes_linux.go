package parts

import "syscall"

// attributes puts a child into a process group of its own, so that Ctrl-C reaches its parent alone, which then ends its children in
// order; and makes the kernel end a child whose parent is gone, so that a test that is killed leaves nothing running.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
