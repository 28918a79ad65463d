package reload

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// scope is the set of paths whose changes can change rules.
type scope struct {
	dirs  map[string]bool // to watch
	names map[string]bool // full paths of rule files and rule directories, and of the symbolic links that lead to them
	rules map[string]bool // directories whose rule files matter, files to come included
	files Files
}

// scopeOf finds the scope of the sources at these paths, and of their tables. For a missing path it
// watches the last directory that exists. A renamed directory further up is left to the poll: a
// watch up to the root would wake for every change in /tmp or /etc.
func scopeOf(paths, tables []string, files Files) scope {
	s := scope{dirs: make(map[string]bool), names: make(map[string]bool), rules: make(map[string]bool), files: files}
	for _, path := range paths {
		if end, info := s.follow(path); info != nil && info.IsDir() {
			s.addDir(end)
		}
	}
	for _, path := range tables {
		s.follow(path)
	}
	return s
}

// addDir adds a directory of rules, the links in it, and its rule directories.
func (s *scope) addDir(dir string) {
	s.dirs[dir], s.rules[dir] = true, true
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // Files.Read reports the error
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && s.files.below(e.Name()):
			s.addDir(path)
		case s.files.match(e.Name()) && e.Type()&fs.ModeSymlink != 0:
			s.follow(path)
		}
	}
}

// maxLinks bounds the symbolic links on the way of one path, as Linux does.
const maxLinks = 40

// follow walks a path component by component, adds every link and the end, and returns the end,
// free of links. For a missing component the info is nil, and the end is that component.
func (s *scope) follow(path string) (end string, info fs.FileInfo) {
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
		here := filepath.Join(at, next) // ".." goes up: at has no links
		met, err := os.Lstat(here)
		if err != nil {
			s.add(here)
			return here, nil
		}
		if met.Mode()&fs.ModeSymlink == 0 {
			at, info = here, met
			continue
		}
		s.add(here)
		target, err := os.Readlink(here)
		if links++; err != nil || links > maxLinks {
			return here, nil
		}
		if filepath.IsAbs(target) {
			at, target = root(target)
		}
		rest = target + string(filepath.Separator) + rest
	}
	s.add(at)
	return at, info
}

// add adds a path, and its directory to those to watch.
func (s *scope) add(path string) {
	s.names[path] = true
	s.dirs[filepath.Dir(path)] = true
}

// root splits an absolute path into its root and the rest.
func root(path string) (top, rest string) {
	top = filepath.VolumeName(path) + string(filepath.Separator)
	return top, strings.TrimLeft(path[len(top)-1:], string(filepath.Separator))
}

// has reports whether an event on this path may change rules.
func (s *scope) has(path string) bool {
	dir, name := filepath.Split(path)
	return s.names[path] || s.rules[filepath.Clean(dir)] && (s.files.match(name) || s.files.below(name))
}
