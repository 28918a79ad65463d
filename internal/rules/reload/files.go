package reload

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// Files says which files of a directory hold rules. The zero value takes *.yaml, *.yml and *.json,
// except names that start with a dot, and no directories below.
type Files struct {
	Bounds descriptors.Options // MaxBytes holds for all files together, MaxTableBytes for their tables; New sets Bounds

	Match func(name string) bool // of a file, by its name without the directory; nil means IsRuleFile
	Below func(name string) bool // of a directory below: its files count too; nil: no directory. Not asked about symbolic links
}

// All takes all files in a directory and below, as envoyproxy/ratelimit does. Exceptions are names
// with two dots, which Kubernetes makes, .git, tables, documentation and the files of editors.
// dotFiles includes names with one dot.
func All(dotFiles bool) Files {
	visible := func(name string) bool {
		return !strings.HasPrefix(name, "..") && name != ".git" && (dotFiles || !strings.HasPrefix(name, "."))
	}
	leftBehind := []string{".csv", ".md", ".txt", ".swp", ".swx", ".bak", ".tmp", ".orig", ".rej"}
	return Files{
		Match: func(name string) bool {
			return visible(name) && !strings.HasSuffix(name, "~") && !slices.Contains(leftBehind, strings.ToLower(filepath.Ext(name)))
		},
		Below: visible,
	}
}

// Unread returns the files at these paths that Read does not take, and that All takes. A path that
// cannot be read has none.
func (f Files) Unread(paths []string) (unread []string) {
	for _, path := range paths {
		taken, _ := f.of(path)
		all, _ := All(false).of(path)
		for _, file := range all {
			if !slices.Contains(taken, file) {
				unread = append(unread, file)
			}
		}
	}
	return unread
}

func (f Files) match(name string) bool {
	if f.Match == nil {
		return IsRuleFile(name)
	}
	return f.Match(name)
}

func (f Files) below(name string) bool { return f.Below != nil && f.Below(name) }

// IsRuleFile reports whether Files without Match takes a file of this name (without its directory):
// *.yaml, *.yml and *.json, unless the name starts with a dot.
func IsRuleFile(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// Read reads rule documents for [descriptors.Load]: files, the rule files of directories, and the
// list `domains` of a settings file ("" for no such file). The extension of a settings file decides
// between YAML, TOML and JSON. Read follows symbolic links, and reads a path once. A directory must
// hold a rule file.
//
// Read does not read a file with which all files are too large: its source has no data, but a
// mistake. Read continues after a mistake and returns all readable sources. The error joins a
// FileError for every other path.
//
// The tables that the documents name are read while the documents are loaded, each once.
func (f Files) Read(paths []string, settings string) ([]descriptors.Source, error) {
	return f.read(paths, settings, newTables(f.Bounds, nil))
}

func (f Files) read(paths []string, settings string, t *tables) ([]descriptors.Source, error) {
	var (
		sources []descriptors.Source
		errs    []error
		seen    = make(map[string]bool)
		size    int // of all files so far
	)
	for _, path := range paths {
		more, mistakes := f.readPath(path, seen, &size)
		sources, errs = append(sources, more...), append(errs, mistakes...)
	}
	if settings != "" {
		source, err := f.inline(settings, &size)
		if err != nil {
			errs = append(errs, err)
		} else {
			sources = append(sources, source)
		}
	}
	for i := range sources {
		sources[i].Table = t.of(sources[i].Name)
	}
	return sources, errors.Join(errs...)
}

// readPath reads the files at a path, except files seen before. Meanwhile a symbolic link may come
// to name another directory, so that a file is gone. Then readPath begins anew, a few times at
// most.
func (f Files) readPath(path string, seen map[string]bool, size *int) ([]descriptors.Source, []error) {
	const most = 3
	for try := 1; ; try++ {
		var (
			sources []descriptors.Source
			errs    []error
			read    = maps.Clone(seen)
			sum     = *size
		)
		files, err := f.of(path)
		if err != nil {
			errs = append(errs, FileError{File: path, Err: regular.Bare(err)})
		}
		gone := false
		for _, file := range files {
			if read[filepath.Clean(file)] {
				continue
			}
			read[filepath.Clean(file)] = true
			source, err := f.readFile(file, &sum)
			if err != nil {
				gone = gone || errors.Is(err, fs.ErrNotExist)
				errs = append(errs, err)
				continue
			}
			sources = append(sources, source)
		}
		if gone && try < most {
			if again, _ := f.of(path); !slices.Equal(again, files) {
				continue
			}
		}
		maps.Copy(seen, read)
		*size = sum
		return sources, errs
	}
}

// FileError is the reason why a file or a directory cannot be read.
type FileError struct {
	File string
	Line int // from 1; 0 when unknown
	Err  error
}

// Error returns `file:line: reason`, without an unknown line.
func (e FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

// Unwrap returns the reason.
func (e FileError) Unwrap() error { return e.Err }

// of returns the files at a path: itself, or the rule files of a directory by name.
func (f Files) of(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	files, err := f.in(path)
	switch {
	case err != nil || len(files) > 0:
		return files, err
	case f.Match != nil:
		return nil, fmt.Errorf("%w, must have at least one", ErrNoFiles)
	default:
		return nil, fmt.Errorf("%w, must have at least one *.yaml, *.yml or *.json", ErrNoFiles)
	}
}

func (f Files) in(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() && f.below(e.Name()) {
			more, err := f.in(path)
			files = append(files, more...)
			if err != nil {
				return files, fmt.Errorf("%s: %w", e.Name(), regular.Bare(err))
			}
		}
		if e.IsDir() || !f.match(e.Name()) {
			continue
		}
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			files = append(files, path)
		}
	}
	return files, nil
}

// readFile reads a regular file, beside files of the size before, and adds its size.
func (f Files) readFile(path string, size *int) (source descriptors.Source, err error) {
	source.Name = path
	defer func() {
		if err != nil {
			err = FileError{File: path, Err: regular.Bare(err)}
		}
	}()
	file, info, err := regular.Open(path)
	if err != nil {
		return source, err
	}
	defer func() { _ = file.Close() }() // nothing was written
	if text, tooLarge := f.Bounds.TooLarge(int(info.Size()), *size); tooLarge {
		source.Mistakes = []descriptors.Error{{File: path, Text: text}}
		return source, nil
	}
	data := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	most := cmp.Or(f.Bounds.MaxBytes, descriptors.DefaultMaxBytes) // Load refuses a file that has grown above
	if _, err := data.ReadFrom(io.LimitReader(file, int64(most)+1)); err != nil {
		return source, err
	}
	source.Data = data.Bytes()
	*size += len(source.Data)
	return source, nil
}

// inline reads the rule documents of a settings file. TOML becomes JSON.
func (f Files) inline(path string, size *int) (descriptors.Source, error) {
	source, err := f.readFile(path, size)
	source.Settings = true
	if err != nil || len(source.Mistakes) > 0 || strings.ToLower(filepath.Ext(path)) != ".toml" {
		return source, err
	}
	const values = 24 // bytes of a key and a value, as descriptors.Size counts them
	if text, tooLarge := f.Bounds.TooLarge(values*bytes.Count(source.Data, []byte("=")), 0); tooLarge {
		return descriptors.Source{Name: path, Settings: true, Mistakes: []descriptors.Error{{File: path, Text: text}}}, nil
	}
	var settings map[string]any
	if err := toml.Unmarshal(source.Data, &settings); err != nil {
		line := 0
		if syntax, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ = syntax.Position()
		}
		return source, FileError{File: path, Line: line, Err: fmt.Errorf("not valid TOML: %w", err)}
	}
	source.Generated = true
	if source.Data, err = json.Marshal(map[string]any{"domains": settings["domains"]}); err != nil {
		return source, FileError{File: path, Err: fmt.Errorf("domains: %w", err)}
	}
	return source, nil
}

type reading struct {
	sources []descriptors.Source // nil once the reading only serves to be compared
	sum     [sha256.Size]byte    // of the sources
	err     error
	tables  *tables           // of the sources
	prints  map[string]string // of the tables that the last attempt before the reading named, see printOf
}

// equal reports whether two readings found the same content, or failed for the same reasons.
func (r reading) equal(o reading) bool {
	return r.sum == o.sum && slices.Equal(reasons(r.err), reasons(o.err)) && maps.Equal(r.prints, o.prints)
}

// mark returns the reading without its sources, which may take as much memory as their rules.
func (r reading) mark() *reading {
	r.sources = nil
	return &r
}

// sumOf identifies the sources of a reading.
func sumOf(sources []descriptors.Source) (sum [sha256.Size]byte) {
	all := sha256.New()
	for _, s := range sources {
		_, _ = fmt.Fprintf(all, "%q %t %t %d %q\n", s.Name, s.Settings, s.Generated, len(s.Data), s.Mistakes) // which never fails
		_, _ = all.Write(s.Data)
	}
	all.Sum(sum[:0])
	return sum
}

func reasons(err error) (all []string) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			all = append(all, reasons(e)...)
		}
	} else if err != nil {
		all = []string{err.Error()}
	}
	return all
}
