package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pkg/reload"
)

// ruleFiles returns which files the original would read from its directory and those below: all of them. Left out, as there they
// can only break everything, are what Kubernetes keeps behind names with two dots, git's own, and what documentation and editors
// leave behind; and names with one dot unless they are wanted.
func ruleFiles(dotFiles bool) reload.Files {
	visible := func(name string) bool {
		return !strings.HasPrefix(name, "..") && name != ".git" && (dotFiles || !strings.HasPrefix(name, "."))
	}
	leftBehind := []string{".md", ".txt", ".swp", ".swx", ".bak", ".tmp", ".orig", ".rej"}
	return reload.Files{
		Match: func(name string) bool {
			return visible(name) && !strings.HasSuffix(name, "~") && !slices.Contains(leftBehind, strings.ToLower(filepath.Ext(name)))
		},
		Below: visible,
	}
}
