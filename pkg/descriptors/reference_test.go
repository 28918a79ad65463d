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

	"github.com/weirproxy/weir/internal/testing/must"
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
			data := must.Get(os.ReadFile(file))(t)
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

// documentOfReference draws documents that are odd and that the reference often takes.
func documentOfReference() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		b.WriteString("domain: edge\n")
		if rapid.Bool().Draw(t, "anchor") {
			b.WriteString("rate_limit: &one {key: k, value: v*, quota_mode: yes, rate_limit: {unit: hour, name: m, requests_per_unit: 3}}\n")
		}
		b.WriteString("descriptors: " + descriptorsOfReference(t, 0) + "\n")
		return b.String()
	})
}

func descriptorsOfReference(t *rapid.T, depth int) string {
	var items []string
	for range rapid.IntRange(0, 3-depth).Draw(t, "descriptors") {
		fields := []string{pick(t, "key", "key: a", "key: b", "key: c", `key: "d"`, "key: 5", "key: yes", "key: a, key: e")}
		maybe := func(name string, choices ...string) {
			if rapid.IntRange(0, 2).Draw(t, name+"?") == 0 {
				fields = append(fields, pick(t, name, choices...))
			}
		}
		maybe("value", "value: x", "value: 5", "value: 010", "value: 0x1f", "value: 1_0", "value: true", "value: n", "value: v*", "value: '*'",
			"value: ", "value: null", "value: ~", `value: ""`, "value: 2001-01-01", "value: 5, value: 6", "value: !!str 5.5", "value: +5", "value: .5.",
			"value: 0o7", "value: 1:30", "value: '5'", "value: <<", "value: !!binary aGk=")
		for _, flag := range []string{"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"} {
			maybe(flag, flag+": true", flag+": yes", flag+": Y", flag+": Off", flag+": ", flag+": FALSE", flag+": !!bool on", flag+": on, "+flag+": no")
		}
		maybe("share", "share_threshold: true, value: a*", "share_threshold: n")
		maybe("level", "unit: second", "requests_per_unit: 5", "domain: x", "unlimited: 7", "replaces: []", "name: {}", "rate_limit: ")
		maybe("metadata", "metadata: {a: 1, b: [x, {c: y}]}", "metadata: ", "metadata: {}")
		maybe("merge", "<<: *one", "<<: [*one, {value: z, shadow_mode: on}]", "<<: {rate_limit: {unit: day}}")
		if rapid.IntRange(0, 5).Draw(t, "limited") > 0 {
			fields = append(fields, "rate_limit: "+limitOfReference(t))
		}
		if depth < 2 {
			maybe("descriptors", "descriptors: ", "descriptors: []", "descriptors: "+descriptorsOfReference(t, depth+1))
		}
		items = append(items, "{"+strings.Join(fields, ", ")+"}")
	}
	return "[" + strings.Join(items, ", ") + "]"
}

func limitOfReference(t *rapid.T) string {
	if rapid.IntRange(0, 4).Draw(t, "unlimited") == 0 {
		return pick(t, "limit", "{unlimited: true}", "{unlimited: yes, unit: }", "{unlimited: on, unit: none, requests_per_unit: 7}",
			"{unlimited: true, name: a, replaces: [{name: b}]}", "{unlimited: true, unlimited: no, unit: day}")
	}
	fields := []string{pick(t, "unit", "unit: second", "unit: MINUTE", "unit: Hour", "unit: day", "unit: week", "unit: month", "unit: 'year'", "unit: x, unit: day")}
	if rapid.IntRange(0, 9).Draw(t, "requests?") > 0 {
		fields = append(fields, pick(t, "requests", "requests_per_unit: 5", "requests_per_unit: 0", "requests_per_unit: 010", "requests_per_unit: 0x10",
			"requests_per_unit: 1_000", "requests_per_unit: +7", "requests_per_unit: 0b11", "requests_per_unit: 4294967295", "requests_per_unit: ",
			"requests_per_unit: -0", "requests_per_unit: 5, requests_per_unit: 6", "requests_per_unit: !!int '5'", "requests_per_unit: 0o17"))
	}
	if rapid.IntRange(0, 3).Draw(t, "named") == 0 {
		fields = append(fields, pick(t, "name", "name: a", "name: 5", "name: ", "name: yes, replaces: [{name: no}]", "replaces: ", "replaces: []",
			"replaces: [{name: b}, {name: b}, {name: a}]", "shadow_mode: true", "key: x", "unlimited: false"))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

func pick(t *rapid.T, name string, choices ...string) string {
	return rapid.SampledFrom(choices).Draw(t, name)
}
