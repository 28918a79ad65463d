// Package forms writes rules as targets read them.
package forms

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirproxy/weir/conformance/cases"
)

// The forms of rules.
const (
	Reference = "reference" // of envoyproxy/ratelimit: one YAML file for each domain
	Weir      = "weir"      // the same with Weir's keys
	Limitador = "limitador" // one limits file
)

// All returns all forms.
func All() []string { return []string{Reference, Weir, Limitador} }

// ReadyDomain is a domain whose key "ready" denies everything for the value of the last written
// rules. So an answer of OVER_LIMIT shows that the target serves these rules.
const ReadyDomain = "conformance_ready"

// ErrCannot says that a form has no words for some rules.
var ErrCannot = errors.New("the form of the target cannot say these rules")

// Check returns nil when a form can say the rules of a domain, and else an error that wraps
// ErrCannot.
func Check(form string, d cases.Domain) error {
	if reason, found := d.Cannot[form]; found {
		return fmt.Errorf("%w: %s", ErrCannot, reason)
	}
	if len(d.Forms) > 0 && !slices.Contains(d.Forms, form) {
		return fmt.Errorf("%w: they have keys of %s", ErrCannot, strings.Join(d.Forms, " and "))
	}
	if form != Limitador {
		return nil
	}
	_, err := limits(d)
	return err
}

// Write writes the rules of the domains that a form can say into a directory: a file for each
// domain, or limits.yaml. marker is the value that ReadyDomain denies from now on. A file is
// written in the directory staging and renamed. texts has the content of a domain's file in place
// of its rules.
func Write(form, directory, staging, marker string, domains []cases.Domain, texts map[string]string) error {
	ready := cases.Domain{Domain: ReadyDomain, Rules: map[string]any{"descriptors": []any{map[string]any{
		"key": "ready", "value": marker, "rate_limit": map[string]any{"unit": "hour", "requests_per_unit": 0},
	}}}}
	// The file of the marker is the last one that changes.
	all := append(slices.Clone(domains), ready)
	if form == Limitador {
		text, err := limitsFile(all)
		if err != nil {
			return err
		}
		for _, other := range texts {
			text = other
		}
		return swap(directory, staging, text)
	}
	for _, d := range all {
		text, broken := texts[d.Domain]
		if !broken {
			if Check(form, d) != nil {
				continue
			}
			var err error
			if text, err = d.Text(); err != nil {
				return err
			}
		} else if d.Domain == ReadyDomain {
			continue
		}
		if err := replace(directory, staging, d.Domain+".yaml", text); err != nil {
			return err
		}
	}
	return nil
}

// replace writes a file beside the directory and renames it, unless the file has that text.
func replace(directory, staging, name, text string) error {
	target := filepath.Join(directory, name)
	if old, err := os.ReadFile(target); err == nil && string(old) == text {
		return nil
	}
	temporary := filepath.Join(staging, "new-"+name)
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, target)
}

// swap writes a file in staging, and makes limits.yaml a link to that file. Limitador notices a
// link that changes, and does not notice a file that takes the place of another one. A file that is
// written in place can be read too soon.
func swap(directory, staging, text string) error {
	f, err := os.CreateTemp(staging, "limits-*.txt")
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	name, err := filepath.Abs(f.Name())
	if err != nil {
		return err
	}
	next := filepath.Join(directory, "next")
	if err := os.Symlink(name, next); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(directory, "limits.yaml"))
}
