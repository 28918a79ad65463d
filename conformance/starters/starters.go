// Package starters holds command lines that start known rate limit services.
package starters

import (
	"bytes"
	"embed"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed *.yaml
var files embed.FS

// A Starter says how a service is started for the suite.
type Starter struct {
	Name    string   `yaml:"-"`
	About   string   `yaml:"about"`
	Form    string   `yaml:"form"`    // of its rules
	Redis   string   `yaml:"redis"`   // required, possible or never
	Has     []string `yaml:"has"`     // features, see package cases
	Program string   `yaml:"program"` // the default of $RLS_PROGRAM
	Command string   `yaml:"command"` // a line of a shell, see README.md
}

// Load returns all starters, in the order of their names.
func Load() ([]Starter, error) {
	names, err := files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var all []Starter
	for _, name := range names {
		text, err := files.ReadFile(name.Name())
		if err != nil {
			return nil, err
		}
		s := Starter{Name: strings.TrimSuffix(name.Name(), ".yaml")}
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		if err := decoder.Decode(&s); err != nil {
			return nil, fmt.Errorf("%s: %w", name.Name(), err)
		}
		all = append(all, s)
	}
	return all, nil
}

// Find returns the starter of that name.
func Find(name string) (Starter, error) {
	all, err := Load()
	if err != nil {
		return Starter{}, err
	}
	var names []string
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Starter{}, fmt.Errorf("starter %q must be one of %s", name, strings.Join(names, ", "))
}
