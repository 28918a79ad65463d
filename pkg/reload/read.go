package reload

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// maxBytes bounds what is read of one file: one more than descriptors.Load accepts, so that it is the one to complain.
const maxBytes = 64<<20 + 1

// Files says which files of a directory hold rules. The zero value: *.yaml, *.yml and *.json whose names do not start with a
// dot, and none of directories in it.
type Files struct {
	Match func(name string) bool // of a file, by its name without the directory; nil means IsRuleFile
	Below func(name string) bool // of a directory in it: its files count too. nil: none. Not asked of symbolic links
}

// match reports whether a file of this name holds rules.
func (f Files) match(name string) bool {
	if f.Match == nil {
		return IsRuleFile(name)
	}
	return f.Match(name)
}

// below reports whether a directory of this name counts too.
func (f Files) below(name string) bool { return f.Below != nil && f.Below(name) }

// Read is [Files.Read] of the usual files.
func Read(paths []string, settings string) ([]descriptors.Source, error) {
	return Files{}.Read(paths, settings)
}

// Read reads rule documents for [descriptors.Load]: from files, from the rule files of directories, and from the list `domains` of a settings file ("" for none), which is YAML, TOML or JSON by its
// name's extension. Symbolic links are followed, a path given twice is read once, and a directory must hold a rule file.
//
// It goes on after a mistake: the error joins, for each path that could not be read, `path: what is wrong`, and the sources
// are what could be read.
func (f Files) Read(paths []string, settings string) ([]descriptors.Source, error) {
	var (
		sources []descriptors.Source
		errs    []error
		seen    = make(map[string]bool)
	)
	for _, path := range paths {
		files, err := f.of(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, bare(err)))
		}
		for _, file := range files {
			if seen[filepath.Clean(file)] {
				continue
			}
			seen[filepath.Clean(file)] = true
			data, err := readFile(file)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", file, bare(err)))
				continue
			}
			sources = append(sources, descriptors.Source{Name: file, Data: data})
		}
	}
	if settings != "" {
		source, err := inline(settings)
		if err != nil {
			errs = append(errs, err)
		} else {
			sources = append(sources, source)
		}
	}
	return sources, errors.Join(errs...)
}

// IsRuleFile reports whether a file of this name (without its directory) is usually read from a directory: *.yaml, *.yml and *.json
// are, unless they start with a dot.
func IsRuleFile(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// of returns the files that a path stands for: itself, or the rule files in it, by name.
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
	case err != nil:
		return files, err
	case len(files) > 0:
		return files, nil
	case f.Match != nil:
		return nil, fmt.Errorf("%w, must have at least one", ErrNoFiles)
	default:
		return nil, fmt.Errorf("%w, must have at least one *.yaml, *.yml or *.json", ErrNoFiles)
	}
}

// in returns the rule files of a directory, by name.
func (f Files) in(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			if f.below(e.Name()) {
				more, err := f.in(path)
				if err != nil {
					return files, fmt.Errorf("%s: %w", e.Name(), bare(err))
				}
				files = append(files, more...)
			}
			continue
		}
		if !f.match(e.Name()) {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			continue
		}
		files = append(files, path)
	}
	return files, nil
}

// readFile reads a regular file, up to maxBytes. Others are refused: reading a pipe could last for ever.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("must be a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return io.ReadAll(io.LimitReader(f, maxBytes))
}

// inline reads the rule documents of a settings file.
func inline(path string) (descriptors.Source, error) {
	source := descriptors.Source{Name: path, Inline: true}
	data, err := readFile(path)
	if err != nil {
		return source, fmt.Errorf("%s: %w", path, bare(err))
	}
	if strings.ToLower(filepath.Ext(path)) != ".toml" {
		source.Data = data
		return source, nil
	}
	var settings map[string]any
	if err := toml.Unmarshal(data, &settings); err != nil {
		if syntax, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ := syntax.Position()
			return source, fmt.Errorf("%s:%d: not valid TOML: %w", path, line, err)
		}
		return source, fmt.Errorf("%s: not valid TOML: %w", path, err)
	}
	domains, given := settings["domains"]
	if !given {
		return source, nil
	}
	list, ok := domains.([]any)
	for _, item := range list {
		document, isMap := item.(map[string]any)
		if !isMap {
			ok = false
			break
		}
		source.Documents = append(source.Documents, document)
	}
	if !ok {
		return source, fmt.Errorf("%s: domains: must be a list of rule documents, [[domains]]", path)
	}
	return source, nil
}

// bare drops the operation and the path from an error of package os: our messages start with the path.
func bare(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// fingerprint is what two readings are compared by: different when a file's name or content is, or what could not be read.
type fingerprint [sha256.Size]byte

// fingerprintOf returns the fingerprint of what Read returned.
func fingerprintOf(sources []descriptors.Source, err error) fingerprint {
	hash := sha256.New()
	add := func(parts ...string) {
		for _, part := range parts {
			_, _ = hash.Write(binary.AppendUvarint(nil, uint64(len(part)))) // a hash never fails
			_, _ = io.WriteString(hash, part)
		}
	}
	for _, s := range sources {
		add(s.Name, string(s.Data), fmt.Sprintf("%#v", s.Documents))
	}
	for _, reason := range reasons(err) {
		add("", reason)
	}
	return fingerprint(hash.Sum(nil))
}

// reasons takes joined errors apart, one text each.
func reasons(err error) []string {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []string
		for _, e := range joined.Unwrap() {
			all = append(all, reasons(e)...)
		}
		return all
	}
	return []string{err.Error()}
}
