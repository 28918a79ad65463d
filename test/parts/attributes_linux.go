package parts

import "syscall"

// attributes puts a child into a process group of its own, so that Ctrl-C reaches its parent alone,
// which then ends its children in order. The kernel ends a child whose parent is gone, so that a
// killed test leaves no process behind.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
