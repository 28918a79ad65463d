package reload

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// places is where changes of rules can happen: which directories to watch, and which names in them matter.
type places struct {
	dirs  map[string]bool // to watch
	names map[string]bool // full paths: files and directories of rules, and the symbolic links on the way to them
	rules map[string]bool // directories whose rule files matter, also those yet to come
	files Files
}

// placesOf follows the paths, symbolic links included, to what changes when their content does. A directory further up that
// is renamed is left to the poll: watching up to the root would wake for every change in /tmp or /etc. What is not there yet is expected in the last directory that is.
func placesOf(paths []string, files Files) places {
	p := places{dirs: make(map[string]bool), names: make(map[string]bool), rules: make(map[string]bool), files: files}
	for _, path := range paths {
		end, info := p.follow(path)
		if info == nil || !info.IsDir() {
			continue
		}
		p.enter(end)
	}
	return p
}

// enter notes a directory of rules, the links in it, and the directories in it that count too.
func (p *places) enter(dir string) {
	p.dirs[dir], p.rules[dir] = true, true
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // watched all the same; reading the rules says what is wrong
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && p.files.below(e.Name()):
			p.enter(path)
		case p.files.match(e.Name()) && e.Type()&fs.ModeSymlink != 0:
			p.follow(path)
		}
	}
}

// maxLinks bounds the symbolic links on the way of one path, as Linux does.
const maxLinks = 40

// follow walks a path component by component, notes every link met and where the walk ends, and returns the end, free of
// links. The info is nil when there is nothing (yet), and end then the part that is missing.
func (p *places) follow(path string) (end string, info fs.FileInfo) {
	path, err := filepath.Abs(path)
	if err != nil {
		return path, nil
	}
	at, rest := root(path)
	for links := 0; ; {
		next, more, found := strings.Cut(rest, string(filepath.Separator))
		if next == "" && !found {
			break
		}
		rest = more
		if next == "" || next == "." {
			continue
		}
		here := filepath.Join(at, next) // ".." steps back, and at has no links
		met, err := os.Lstat(here)
		if err != nil {
			p.note(here)
			return here, nil
		}
		if met.Mode()&fs.ModeSymlink == 0 {
			at, info = here, met
			continue
		}
		p.note(here)
		target, err := os.Readlink(here)
		if links++; err != nil || links > maxLinks {
			return here, nil
		}
		if filepath.IsAbs(target) {
			at, target = root(target)
		}
		rest = target + string(filepath.Separator) + rest
	}
	p.note(at)
	return at, info
}

// note makes a path one that matters, and has its directory watched.
func (p *places) note(path string) {
	p.names[path] = true
	p.dirs[filepath.Dir(path)] = true
}

// root splits an absolute path into its root and what follows.
func root(path string) (top, rest string) {
	top = filepath.VolumeName(path) + string(filepath.Separator)
	return top, strings.TrimLeft(path[len(top)-1:], string(filepath.Separator))
}

// concern reports whether an event on this path may change rules.
func (p *places) concern(path string) bool {
	dir, name := filepath.Split(path)
	return p.names[path] || p.rules[filepath.Clean(dir)] && (p.files.match(name) || p.files.below(name))
}
