package model

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/conformance/internal/forms"
)

// A Domain is a file of rules.
type Domain struct {
	Domain      string  `yaml:"domain"`
	Default     *Limit  `yaml:"default"`
	Descriptors []*Node `yaml:"descriptors"`
}

// A Node is a descriptor of the rules.
type Node struct {
	Key            string         `yaml:"key"`
	Value          *string        `yaml:"value"`
	RateLimit      *Limit         `yaml:"rate_limit"`
	RateLimits     []*Limit       `yaml:"rate_limits"`
	Descriptors    []*Node        `yaml:"descriptors"`
	Shadow         bool           `yaml:"shadow_mode"`
	Quota          bool           `yaml:"quota_mode"`
	Share          bool           `yaml:"share_threshold"`
	DetailedMetric bool           `yaml:"detailed_metric"`
	ValueToMetric  bool           `yaml:"value_to_metric"`
	Metadata       map[string]any `yaml:"metadata"`
}

// A Limit is one limit of a node.
type Limit struct {
	Unit         string `yaml:"unit"`
	Multiplier   int64  `yaml:"unit_multiplier"`
	Requests     uint32 `yaml:"requests_per_unit"`
	Burst        uint32 `yaml:"burst"`
	Algorithm    string `yaml:"algorithm"`
	Counted      *bool  `yaml:"count_rejected"`
	Unlimited    bool   `yaml:"unlimited"`
	Name         string `yaml:"name"`
	ReplacesList []struct {
		Name string `yaml:"name"`
	} `yaml:"replaces"`
}

func (n *Node) limits() []*Limit {
	if n.RateLimit != nil {
		return []*Limit{n.RateLimit}
	}
	return n.RateLimits
}

func (n *Node) wildcard() bool { return n.Value != nil && strings.Contains(*n.Value, "*") }

// load reads the rules of a directory, or fails as a whole.
func load(directory string) (map[string]*Domain, error) {
	names, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil {
		return nil, err
	}
	all := make(map[string]*Domain)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		d := new(Domain)
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		if err := decoder.Decode(d); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := check(d.Descriptors); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[d.Domain] = d
	}
	return all, nil
}

func check(nodes []*Node) error {
	for _, n := range nodes {
		for _, l := range n.limits() {
			if _, known := forms.Seconds(l.Unit); !known && !l.Unlimited {
				return fmt.Errorf("unit %q", l.Unit)
			}
		}
		if err := check(n.Descriptors); err != nil {
			return err
		}
	}
	return nil
}
