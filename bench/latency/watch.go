package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// watcher is a running `sidecar watch`, which prints into a file.
type watcher struct {
	command *exec.Cmd
	prints  string
}

// watch watches a sidecar.
func (b *bench) watch(ctx context.Context, admin string) (w *watcher, err error) {
	w = &watcher{prints: filepath.Join(b.dir, "watch")}
	f, err := os.Create(w.prints)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w.command = exec.CommandContext(ctx, b.o.sidecar, "watch", "--server="+admin, "--max-per-second="+strconv.Itoa(b.o.watch))
	w.command.Stdout, w.command.Stderr = f, os.Stderr
	return w, w.command.Start()
}

var shownRequests = regexp.MustCompile(`(?m)^(\d+) requests?, \d+ over limit$`)

// end ends the watch and returns the number of requests that it has shown.
func (w *watcher) end() (shown int, err error) {
	if err := errors.Join(w.command.Process.Signal(os.Interrupt), w.command.Wait()); err != nil {
		return 0, fmt.Errorf("sidecar watch: %w", err)
	}
	text, err := os.ReadFile(w.prints)
	if err != nil {
		return 0, err
	}
	found := shownRequests.FindSubmatch(text)
	if found == nil {
		return 0, errors.New("sidecar watch: printed no summary")
	}
	return strconv.Atoi(string(found[1]))
}
