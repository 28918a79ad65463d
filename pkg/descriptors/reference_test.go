package descriptors

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	yaml2 "go.yaml.in/yaml/v2"
	"pgregory.net/rapid"
)

// referenceRoot and the types below it mirror envoyproxy/ratelimit, which decodes a document twice
// with version 2 of the YAML library: once for the keys and once for the values.
type referenceRoot struct {
	Domain      string
	Descriptors []referenceDescriptor
}

type referenceDescriptor struct {
	Key, Value     string
	RateLimit      *referenceLimit `yaml:"rate_limit"`
	Descriptors    []referenceDescriptor
	ShadowMode     bool `yaml:"shadow_mode"`
	QuotaMode      bool `yaml:"quota_mode"`
	DetailedMetric bool `yaml:"detailed_metric"`
	ValueToMetric  bool `yaml:"value_to_metric"`
	ShareThreshold bool `yaml:"share_threshold"`
	Metadata       map[string]any
}

type referenceLimit struct {
	RequestsPerUnit uint32 `yaml:"requests_per_unit"`
	Unit            string
	Unlimited       bool
	Name            string
	Replaces        []struct{ Name string }
}

// readReference returns the document if the reference takes it.
func readReference(data []byte) (root referenceRoot, err error) {
	var all map[any]any
	if err := yaml2.Unmarshal(data, &all); err != nil {
		return root, err
	}
	if err := checkReferenceKeys(all); err != nil {
		return root, err
	}
	if err := yaml2.Unmarshal(data, &root); err != nil {
		return root, err
	}
	if root.Domain == "" {
		return root, errors.New("no domain")
	}
	return root, checkReferenceDescriptors(root.Descriptors)
}

func checkReferenceKeys(all map[any]any) error {
	for k, v := range all {
		key, ok := k.(string)
		if !ok || unknownToReference(key) {
			return fmt.Errorf("key %v", k)
		}
		if key == "metadata" {
			continue
		}
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				m, ok := item.(map[any]any)
				if !ok {
					return fmt.Errorf("list of %T", item)
				}
				if err := checkReferenceKeys(m); err != nil {
					return err
				}
			}
		case map[any]any:
			if err := checkReferenceKeys(v); err != nil {
				return err
			}
		case string, int, bool, nil:
		default:
			return fmt.Errorf("%s is a %T", key, v)
		}
	}
	return nil
}

func checkReferenceDescriptors(list []referenceDescriptor) error {
	seen := make(map[string]bool)
	for _, d := range list {
		glued := d.Key
		if d.Value != "" {
			glued += "_" + d.Value
		}
		if d.Key == "" || seen[glued] {
			return fmt.Errorf("key %q is empty or there twice", glued)
		}
		seen[glued] = true
		if d.ShareThreshold && !strings.Contains(d.Value, "*") {
			return errors.New("share_threshold")
		}
		if l := d.RateLimit; l != nil {
			if _, ok := ParseUnit(l.Unit); ok == l.Unlimited {
				return fmt.Errorf("unit %q", l.Unit)
			}
			for _, r := range l.Replaces {
				if r.Name == "" || r.Name == l.Name {
					return fmt.Errorf("replaces %q", r.Name)
				}
			}
		}
		if err := checkReferenceDescriptors(d.Descriptors); err != nil {
			return err
		}
	}
	return nil
}

// wantRules returns the expected rules of a document of the reference, one line each.
func wantRules(list []referenceDescriptor, parent string) []string {
	var lines []string
	for _, d := range list {
		path := parent + d.Key
		if d.Value != "" {
			path += "=" + d.Value
		}
		line := fmt.Sprintf("%q shadow=%t quota=%t detailed=%t value=%t share=%t", path, d.ShadowMode, d.QuotaMode, d.DetailedMetric,
			d.ValueToMetric, d.ShareThreshold)
		if l := d.RateLimit; l != nil {
			unit, _ := ParseUnit(l.Unit)
			var names []string
			for _, r := range l.Replaces {
				if !slices.Contains(names, r.Name) {
					names = append(names, r.Name)
				}
			}
			line += fmt.Sprintf(" name=%q replaces=%q unlimited=%t", l.Name, names, l.Unlimited)
			if !l.Unlimited {
				line += fmt.Sprintf(" %d/%v fixed_window counting rejected=true", l.RequestsPerUnit, unit)
			}
		}
		lines = append(append(lines, line), wantRules(d.Descriptors, path+",")...)
	}
	return lines
}

// gotRules is the same of rules.
func gotRules(rules *Rules) []string {
	var lines []string
	for _, r := range rules.All() {
		last := r.Levels[len(r.Levels)-1]
		line := fmt.Sprintf("%q shadow=%t quota=%t detailed=%t value=%t share=%t", r.Path, r.Shadow, r.Quota, r.DetailedMetric,
			last.ValueToMetric, last.ShareThreshold)
		if r.Unlimited || len(r.Limits) > 0 {
			line += fmt.Sprintf(" name=%q replaces=%q unlimited=%t", r.Name, r.Replaces, r.Unlimited)
		}
		for _, l := range r.Limits {
			line += fmt.Sprintf(" %d/%v %v counting rejected=%t", l.Requests, l.Unit, l.Algorithm, l.CountRejected)
		}
		lines = append(lines, line)
	}
	return lines
}

// differs reports whether a warning announces another meaning than in the reference.
func differs(warnings []Warning) bool {
	return slices.ContainsFunc(warnings, func(w Warning) bool { return strings.Contains(w.Text, "(envoyproxy/ratelimit ") })
}

// checkReference compares the two readings of a document, and reports whether the reference takes
// it, and whether there was something to compare.
func checkReference(t interface {
	Helper()
	Fatalf(string, ...any)
	Errorf(string, ...any)
}, data []byte,
) (taken, compared bool) {
	t.Helper()
	want, err := readReference(data)
	if err != nil {
		return false, false
	}
	rules, warnings, err := Load([]Source{{Name: "rules.yaml", Data: data}}, Options{})
	if differs(warnings) {
		return true, false
	}
	if err != nil {
		t.Fatalf("the reference takes this, Load does not: %v\n%s", err, data)
	}
	if diff := cmp.Diff(wantRules(want.Descriptors, ""), gotRules(rules)); diff != "" {
		t.Errorf("rules (-reference +got):\n%s\nof\n%s", diff, data)
	}
	return true, true
}

func TestFilesOfTheReferenceMeanTheSame(t *testing.T) {
	files, err := filepath.Glob("testdata/reference/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if taken, _ := checkReference(t, data); !taken {
				_, err := readReference(data)
				t.Errorf("the reference does not take this: %v", err)
			}
		})
	}
}

func TestDrawnDocumentsMeanTheSameAsInTheReference(t *testing.T) {
	all, same := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		_, compared := checkReference(t, []byte(documentOfReference().Draw(t, "document")))
		all++
		if compared {
			same++
		}
	})
	if t.Logf("%d of %d documents were compared", same, all); 20*same < all {
		t.Errorf("only %d of %d documents were compared", same, all)
	}
}

func FuzzReference(f *testing.F) {
	files, err := filepath.Glob("testdata/reference/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, err := Load([]Source{{Data: data}}, Options{})
		if err != nil && strings.Contains(err.Error(), "not valid YAML") {
			return // The two versions of the library may differ, as in control characters at the end.
		}
		checkReference(t, data)
	})
}

func unknownToReference(key string) bool {
	_, original := home(key)
	return !original
}
