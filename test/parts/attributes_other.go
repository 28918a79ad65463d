//go:build !linux

package parts

import "syscall"

// attributes puts a child into a process group of its own, so that Ctrl-C reaches its parent alone,
// which then ends its children in order. Only Linux can also tie a child's life to its parent's.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
