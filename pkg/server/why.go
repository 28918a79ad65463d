package server

import (
	"fmt"
	"strings"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// why says in words how a descriptor came to be treated as it was: what its entries met in the rules of its domain (nil when
// there are none), and what followed.
func why(domain *descriptors.Domain, d *limiter.Descriptor, s *limiter.DescriptorStatus) string {
	var words []string
	if domain != nil {
		for _, step := range domain.Trace(d.Entries) {
			words = append(words, step.String())
		}
	}
	return strings.Join(append(words, outcome(domain, s)), "; ")
}

func outcome(domain *descriptors.Domain, s *limiter.DescriptorStatus) string {
	switch {
	case domain == nil:
		return "there are no rules for this domain: not limited"
	case s.Overridden && s.Rule == nil:
		return "no rule matches: the limit that came with the descriptor applies"
	case s.Overridden:
		return fmt.Sprintf("the limit that came with the descriptor replaces those of rule %s", s.Rule.Path)
	case s.Rule == nil:
		return "no rule matches, and the domain has no default: not limited"
	case s.Outcome == limiter.Replaced:
		return fmt.Sprintf("rule %s is dropped: another rule that the request matches replaces %q", s.Rule.Path, s.Rule.Name)
	case s.Outcome == limiter.Unlimited:
		return fmt.Sprintf("rule %s is unlimited: always passes", s.Rule.Path)
	case s.Outcome == limiter.NoLimit:
		return fmt.Sprintf("rule %s has no limit: not limited", s.Rule.Path)
	}
	text := "rule " + s.Rule.Path + " applies"
	if s.Rule == domain.Default {
		text = "no rule matches: the default limit of the domain applies"
	}
	switch {
	case s.Rule.Shadow:
		text += ", in shadow mode: it decides and counts, and always reports OK"
	case s.Rule.Quota:
		text += ", as a quota: a request is denied when all its quotas are spent"
	}
	return text
}
