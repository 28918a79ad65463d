package parts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Root returns the top folder of the repository that the working directory is in: the folder whose
// go.mod names Weir's own module. The modules in deploy, bench and tools lie below that folder.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for go.mod: %w", err)
	}
	for {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(text), "module github.com/weirproxy/weir\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("looking for go.mod: not inside the repository")
		}
		dir = parent
	}
}

// Program compiles a program and returns the absolute path of the binary. Folder is the folder of
// the program in the repository at root, such as cmd/sidecar. With race, the binary has the race
// detector; without, it is static as in the image. The binary stays in .cache, so that the next
// call links again only after a change. Tests of several packages may call Program at the same
// time. When the sources change meanwhile, a test may start a newer binary.
func Program(ctx context.Context, root, folder string, race bool) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", fmt.Errorf("building %s: %w", folder, err)
	}
	dir := filepath.Join(root, ".cache", "programs")
	if race {
		dir += "-race"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("building %s: %w", folder, err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, filepath.Base(folder)+".lock"), os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return "", fmt.Errorf("building %s: %w", folder, err)
	}
	defer func() { _ = lock.Close() }() // closing unlocks
	err = poll(ctx, "the lock "+lock.Name(), func() error { return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) })
	if err != nil {
		return "", fmt.Errorf("building %s: %w", folder, err)
	}
	return build(ctx, root, dir, folder, race)
}

// build compiles the program in a folder of the repository at root into dir.
func build(ctx context.Context, root, dir, folder string, race bool) (string, error) {
	binary, err := filepath.Abs(filepath.Join(dir, filepath.Base(folder)))
	if err != nil {
		return "", fmt.Errorf("building %s: %w", folder, err)
	}
	args, cgo := []string{"build", "-tags", "grpcnotrace", "-o", binary}, "CGO_ENABLED=0" // as in the image
	if race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1" // which the race detector needs
	}
	build := exec.CommandContext(ctx, "go", append(args, ".")...)
	build.Dir, build.Env = filepath.Join(root, folder), append(os.Environ(), cgo)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", folder, err, out)
	}
	return binary, nil
}
