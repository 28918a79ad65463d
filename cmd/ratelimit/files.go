package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirproxy/weir/internal/rules/reload"
)

// ruleFiles chooses the rule files: all files in the directory and below, as in the original.
// Exceptions are names with two dots, which Kubernetes makes, .git, tables, documentation and the
// files of editors. dotFiles includes names with one dot.
func ruleFiles(dotFiles bool) reload.Files {
	visible := func(name string) bool {
		return !strings.HasPrefix(name, "..") && name != ".git" && (dotFiles || !strings.HasPrefix(name, "."))
	}
	leftBehind := []string{".csv", ".md", ".txt", ".swp", ".swx", ".bak", ".tmp", ".orig", ".rej"}
	return reload.Files{
		Match: func(name string) bool {
			return visible(name) && !strings.HasSuffix(name, "~") && !slices.Contains(leftBehind, strings.ToLower(filepath.Ext(name)))
		},
		Below: visible,
	}
}
