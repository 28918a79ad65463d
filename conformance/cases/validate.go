package cases

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The features that a case can need. A starter, or --provides, says which ones a target has.
const (
	FeatureStart     = "start"             // the runner starts the target, and may end it
	FeatureRedis     = "redis"             // the runner starts Redis for the target
	FeatureSentinel  = "sentinel"          // the target asks a Sentinel for the primary
	FeatureMetadata  = "metadata"          // the target answers with dynamic metadata
	FeatureHeaders   = "headers"           // the target answers with headers of its own
	FeatureCounted   = "counted-denials"   // a denied request counts for its other descriptors
	FeatureUncounted = "uncounted-denials" // the target is set to charge denied requests nowhere
)

// Features returns all features.
func Features() []string {
	return []string{FeatureStart, FeatureRedis, FeatureSentinel, FeatureMetadata, FeatureHeaders, FeatureCounted, FeatureUncounted}
}

func (d *Document) validate() error {
	var failed []error
	fail := func(where, format string, args ...any) {
		failed = append(failed, fmt.Errorf("%s%s: %s", d.Name, where, fmt.Sprintf(format, args...)))
	}
	if d.About == "" {
		fail("", "about is missing")
	}
	domains := make(map[string]bool)
	for _, domain := range d.Domains {
		if domain.Domain == "" || domains[domain.Domain] {
			fail("", "domain %q is empty or given twice", domain.Domain)
		}
		domains[domain.Domain] = true
	}
	names := make(map[string]bool)
	for i := range d.Cases {
		c := &d.Cases[i]
		where := "/" + c.Name
		if c.Name == "" || names[c.Name] || strings.ContainsAny(c.Name, " {}") {
			fail(where, "the name is empty, given twice, or has blanks or braces")
		}
		names[c.Name] = true
		if c.Claim == "" || c.From == "" {
			fail(where, "claim or from is missing")
		}
		if !slices.Contains(Profiles(), c.Profile) {
			fail(where, "profile %q must be one of %v", c.Profile, Profiles())
		}
		if c.Domain != "" && !domains[c.Domain] {
			fail(where, "the document has no domain %q", c.Domain)
		}
		for _, feature := range c.Features() {
			if !slices.Contains(Features(), feature) {
				fail(where, "needs %q must be one of %v", feature, Features())
			}
		}
		if c.Align != "" && c.Align != "second" {
			fail(where, "align %q must be second", c.Align)
		}
		if len(c.Steps) == 0 {
			fail(where, "a case needs steps")
		}
		for j := range c.Steps {
			if err := c.Steps[j].validate(); err != nil {
				fail(where, "steps[%d]: %v", j, err)
			}
		}
	}
	return errors.Join(failed...)
}

// actions returns the names of the actions that a step has.
func (s *Step) actions() []string {
	var names []string
	for name, given := range map[string]bool{
		"ask": s.Ask != "", "race": s.Race != nil, "raw": s.Raw != nil, "wait": s.Wait != "", "health": s.Health != nil, "list": s.List,
		"reload": s.Reload != nil, "broken": s.Broken != "", "drain": s.Drain != nil, "redis": s.Redis != "",
	} {
		if given {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *Step) validate() error {
	actions := s.actions()
	if len(actions) != 1 {
		return fmt.Errorf("a step has one action, but this one has %q", actions)
	}
	if s.Within != "" {
		if _, err := time.ParseDuration(s.Within); err != nil {
			return err
		}
	}
	switch actions[0] {
	case "ask":
		if _, err := ParseRequest(s.Ask, "", "x"); err != nil {
			return err
		}
		_, err := ParseAnswer(s.Is)
		return err
	case "raw", "health":
		if s.Raw != nil && s.Raw.Plain != "" {
			return nil
		}
		_, err := ParseAnswer(s.Is)
		return err
	case "race":
		for _, ask := range s.Race.Asks() {
			if _, err := ParseRequest(ask, "", "x"); err != nil {
				return err
			}
		}
		if s.Race.Clients < 1 || s.Race.Requests < 1 {
			return errors.New("a race needs clients and requests")
		}
		_, _, err := s.Race.Bounds()
		return err
	case "drain":
		_, err := time.ParseDuration(s.Drain.Longest)
		return err
	case "redis":
		if known := []string{"pause", "resume", "kill", "start", "failover"}; !slices.Contains(known, s.Redis) {
			return fmt.Errorf("redis %q must be one of %v", s.Redis, known)
		}
	case "wait":
		if s.Wait == "next second" {
			return nil
		}
		_, err := time.ParseDuration(s.Wait)
		return err
	default:
	}
	return nil
}
