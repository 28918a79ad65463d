package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/internal/settings"
	"github.com/weirproxy/weir/internal/spelling"
	"github.com/weirproxy/weir/pkg/descriptors"
)

func addSettings(flags *pflag.FlagSet) {
	var unused config
	for _, s := range table(&unused) {
		f := flags.VarPF(&flagText{setting: s, text: s.usual}, s.name, "", fmt.Sprintf("%s [$%s]", s.help, s.variable()))
		if s.value.Kind == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	flags.SortFlags = false
}

// flagText is the text of a flag. readConfig reads it together with all other settings, and reports
// every mistake at once.
type flagText struct {
	setting
	text string
	set  bool
}

// Set implements [pflag.Value].
func (w *flagText) Set(s string) error {
	if w.value.Kind == "bool" { // viper reads any other text as false
		if err := w.value.Set(s); err != nil {
			return err
		}
	}
	if w.value.List && w.set {
		s = strings.Join([]string{w.text, s}, ",")
	}
	w.text, w.set = s, true
	return nil
}

// String implements [pflag.Value].
func (w *flagText) String() string { return w.text }

// Type implements [pflag.Value].
func (w *flagText) Type() string { return w.value.Kind }

// readConfig returns the settings: of the flags, else of the environment, else of the settings
// file, else the defaults. The error joins everything that is wrong with any of them, unknown names
// included.
func readConfig(flags *pflag.FlagSet) (config, error) {
	var c config
	all := table(&c)
	v := viper.New()
	v.AllowEmptyEnv(true) // an empty address is off
	errs := unknownVariables(os.Environ(), all)
	for _, s := range all {
		v.SetDefault(s.name, s.usual)
		errs = append(errs, v.BindEnv(s.name, s.variable()), v.BindPFlag(s.name, flags.Lookup(s.name)))
	}
	file := v.GetString("config")
	if file != "" && settingsFormat(file) == nil {
		errs = append(errs, mergeFile(v, file, all)...)
	}
	c.given = make(map[string]string)
	for _, s := range all {
		name := written(s, flags, v, file)
		if name != s.name {
			c.given[s.name] = name
		}
		errs = append(errs, settings.Mistakes(name, s.value.Set(v.Get(s.name)))...)
	}
	// Mistakes in combinations are useful once each setting is right.
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	err := errors.Join(c.complete()...)
	return c, err
}

// written names a setting as the operator wrote it.
func written(s setting, flags *pflag.FlagSet, v *viper.Viper, file string) string {
	_, inEnvironment := os.LookupEnv(s.variable())
	switch {
	case flags.Changed(s.name):
		return "--" + s.name
	case inEnvironment:
		return s.variable()
	case v.InConfig(s.name):
		return file + ": " + s.name
	default:
		return s.name
	}
}

// mergeFile lets viper read a settings file, and returns mistakes in the keys. viper finds all
// settings, also the paths in `rules`, and the list `domains`. Of that list only the place counts.
// Package reload gives the bytes of the file to descriptors.Load, because viper would turn keys to
// lower case and lose lines.
func mergeFile(v *viper.Viper, file string, all []setting) []error {
	info, err := os.Stat(file)
	if err != nil {
		return []error{fmt.Errorf("config: %w", err)}
	}
	// Viper needs as much memory as rules. The bound in the file itself is not known yet.
	bounds := descriptors.Options{MaxBytes: max(0, v.GetInt("max-rules-bytes"))}
	if text, tooLarge := bounds.TooLarge(int(info.Size()), 0); tooLarge {
		return []error{fmt.Errorf("%s: %s", file, text)}
	}
	data, err := regular.Read(file, cmp.Or(bounds.MaxBytes, descriptors.DefaultMaxBytes))
	if err != nil {
		return []error{fmt.Errorf("config: %w", err)}
	}
	if text, tooLarge := bounds.TooLarge(descriptors.Size(data), 0); tooLarge {
		return []error{fmt.Errorf("%s: %s", file, text)}
	}
	read := viper.New()
	read.SetConfigType(formatOf(file))
	if err := read.ReadConfig(bytes.NewReader(data)); err != nil {
		return []error{fmt.Errorf("%s: %w", file, errors.Unwrap(err))}
	}
	var errs []error
	names := make([]string, 0, len(all))
	for _, s := range all {
		if !s.onlyOutside() {
			names = append(names, s.name)
		}
	}
	known := make(map[string]any)
	keys := read.AllKeys()
	slices.Sort(keys)
	for _, key := range keys {
		name := strings.ReplaceAll(key, "_", "-")
		top, _, _ := strings.Cut(key, ".")
		switch {
		case top == "domains": // rules, not settings: Rules.Settings has the file
		case !slices.Contains(names, name):
			errs = append(errs, fmt.Errorf("%s: %s: is not a setting%s", file, key, meant(name, append(names, "domains"))))
		case known[name] != nil:
			errs = append(errs, fmt.Errorf("%s: %s: is given twice, with '-' and with '_'", file, key))
		case read.Get(key) == nil:
			errs = append(errs, fmt.Errorf("%s: %s: has no value", file, key))
		default:
			known[name] = read.Get(key)
		}
	}
	return append(errs, v.MergeConfigMap(known))
}

// formatOf returns the format of a settings file as viper names it, "" for any other format.
func formatOf(path string) string {
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".yaml", ".yml", ".toml", ".json":
		return ext[1:]
	}
	return ""
}

// unknownVariables returns an error for each of our environment names that is no setting.
func unknownVariables(environ []string, all []setting) []error {
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, s.variable())
	}
	var errs []error
	for _, pair := range slices.Sorted(slices.Values(environ)) {
		name, content, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, environmentPrefix) || slices.Contains(names, name) || notOurs(name, content) {
			continue
		}
		errs = append(errs, fmt.Errorf("%s: is not a setting%s", name, meant(name, names)))
	}
	return errs
}

// notOurs reports whether a variable has our prefix for another reason. Kubernetes sets variables
// for each Service called weir or weir-something, and WEIR_REQUIRE is for the tests of this
// project.
func notOurs(name, content string) bool {
	return name == environmentPrefix+"REQUIRE" || settings.OfKubernetes(name, content)
}

// meant suggests the nearest name, "" when no name is near. Near means that at most a third of the
// bytes differ.
func meant(name string, names []string) string {
	best := spelling.Nearest(name, names, len(name)/3)
	if best == "" {
		return ""
	}
	return ", did you mean " + best + "?"
}
