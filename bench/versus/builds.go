package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The versions that are measured where no binary is given.
const (
	ratelimitModule   = "github.com/envoyproxy/ratelimit/src/service_cmd"
	ratelimitVersion  = "v1.4.1-0.20260122083618-3fb702589d36"
	gubernatorModule  = "github.com/gubernator-io/gubernator/v2/cmd/gubernator"
	gubernatorVersion = "v2.16.0" // v2.21.0 needs a newer Go
)

// binaries are the programs of other projects. An empty path is a program that could not be built,
// and why has the reason.
type binaries struct {
	ratelimit, gubernator, limitador string
	limitadorVersion                 string
	why                              map[string]string
}

// builds finds the programs in a folder, and builds the missing ones.
func builds(ctx context.Context, cache, limitadorTree string, log func(string)) (b binaries, err error) {
	b.why = make(map[string]string)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return b, err
	}
	for _, p := range []struct {
		path             *string
		module, versions string
		name             string
	}{
		{&b.ratelimit, ratelimitModule, ratelimitVersion, "ratelimit"},
		{&b.gubernator, gubernatorModule, gubernatorVersion, "gubernator"},
	} {
		path := filepath.Join(cache, p.name+"-"+p.versions)
		if _, err := os.Stat(path); err != nil {
			log("building " + p.module + "@" + p.versions)
			if err := install(ctx, cache, p.module, p.versions, path); err != nil {
				b.why[p.name] = err.Error()
				continue
			}
		}
		*p.path = path
	}
	return b, b.limitadorIn(ctx, cache, limitadorTree, log)
}

// install builds a program of a module at a version.
func install(ctx context.Context, cache, module, version, path string) error {
	dir, err := os.MkdirTemp(cache, "install")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	command := exec.CommandContext(ctx, "go", "install", "-trimpath", module+"@"+version)
	command.Env, command.Dir = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0"), dir // no go.mod of this module
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("go install %s@%s: %w: %s", module, version, err, lastLine(out))
	}
	return os.Rename(filepath.Join(dir, filepath.Base(module)), path)
}

// limitadorIn takes limitador-server from the folder, or builds it with cargo in a tree.
func (b *binaries) limitadorIn(ctx context.Context, cache, tree string, log func(string)) error {
	path := filepath.Join(cache, "limitador-server")
	if _, err := os.Stat(path); err != nil {
		if tree == "" {
			b.why["limitador"] = "no tree of its source was given by -limitador"
			return nil
		}
		log("building limitador-server, which takes a quarter of an hour")
		target := filepath.Join(cache, "limitador-target")
		command := exec.CommandContext(ctx, "cargo", "build", "--release", "--locked", "-p", "limitador-server", "--target-dir", target)
		command.Dir = tree
		if out, err := command.CombinedOutput(); err != nil {
			b.why["limitador"] = fmt.Sprintf("cargo build: %v: %s", err, lastLine(out))
			return nil
		}
		if err := os.Link(filepath.Join(target, "release", "limitador-server"), path); err != nil {
			return err
		}
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return errors.Join(errors.New("limitador-server --version"), err)
	}
	b.limitador, b.limitadorVersion = path, strings.TrimPrefix(strings.TrimSpace(string(out)), "limitador-server ")
	return nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
