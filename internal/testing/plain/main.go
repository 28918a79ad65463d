// Plain counts sentences of the repository that break the rule of plain English in CONTRIBUTING.md.
//
// The program reads comments of Go, Lua, protobuf, shell, make and YAML files, and the prose of
// Markdown files. Of Go files that are not tests, the program reads string literals too. The
// program cannot judge a sentence; a low count only shows that a person has read the text.
//
//	plain [-v] [-max FILE] [PATH…]
//
// Without PATH, the program reads every file that git tracks. With -max, the program fails unless
// the count is the number in FILE. A lower count asks for a lower number, so that number only goes
// down.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("plain", flag.ContinueOnError)
	verbose := flags.Bool("v", false, "print every finding, not only the counts")
	limit := flags.String("max", "", "file that holds the largest allowed count")
	if err := flags.Parse(args); err != nil {
		return err
	}
	files, err := tracked(flags.Args())
	if err != nil {
		return err
	}
	all := patterns()
	total, byFolder := 0, map[string]int{}
	out := bufio.NewWriter(stdout)
	defer func() { _ = out.Flush() }()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, s := range sentences(file, text) {
			for _, name := range broken(s.text, all) {
				total++
				byFolder[filepath.Dir(file)]++
				if *verbose {
					fmt.Fprintf(out, "%s:%d: %s: %s\n", file, s.line, name, s.text)
				}
			}
		}
	}
	if *limit == "" {
		for _, folder := range sorted(byFolder) {
			fmt.Fprintf(out, "%6d  %s\n", byFolder[folder], folder)
		}
		fmt.Fprintf(out, "%6d  in all\n", total)
		return nil
	}
	return hold(*limit, total)
}

// hold compares the total with the number in a file.
func hold(file string, total int) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	allowed, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", file, err)
	case total > allowed:
		return fmt.Errorf("plain English: %d findings, %s allows %d; run `go run ./internal/testing/plain -v` and rewrite the new sentences", total, file, allowed)
	case total < allowed:
		return fmt.Errorf("plain English: %d findings, %s allows %d; write %d into %s, so that the number only goes down", total, file, allowed, total, file)
	}
	return nil
}

// tracked returns the files that git tracks below the paths, without generated files, test data and
// licenses.
func tracked(paths []string) ([]string, error) {
	list, err := exec.Command("git", append([]string{"ls-files", "-z", "--"}, paths...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var files []string
	for file := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		if file == "" || strings.HasSuffix(file, ".pb.go") || strings.Contains(file, "testdata/") || strings.Contains(file, "crds/") {
			continue
		}
		if _, err := os.Lstat(file); err == nil { // a removed file is tracked until the next commit
			files = append(files, file)
		}
	}
	return files, nil
}

func sorted(counts map[string]int) []string {
	names := make([]string, 0, len(counts))
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(x, y string) int { return counts[y] - counts[x] })
	return names
}
