// Package cases runs tests of rules. A file of cases has requests with their times, and the
// expected answers. The requests go through the real limiter and a store in memory, in virtual
// time. So a test of days takes microseconds, and has the same result each time.
//
// The package decides about the meaning of a file of cases, and whether an answer is as expected.
// Package limiter makes the answers.
package cases

import (
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// File is a file of cases.
type File struct {
	Path  string
	Rules []string // files and directories, joined to the directory of the file
	Tests []Test   // at least one
}

// Test is requests in order, to a store without counts.
type Test struct {
	Name   string
	Line   int // in the file, from 1
	Domain string
	Start  time.Time // instant 0 of its steps
	Steps  []Step    // at least one
}

// Step is one request, or the same one several times at one instant, and the expected answers.
type Step struct {
	Line        int           // in the file, from 1
	At          time.Duration // since the start; not before the step above
	Times       int           // at least 1
	Descriptors []Descriptor  // at least one
	Verdict     string        // "ok" or "over_limit", of each time; "" for any
	Groups      []string      // of quotas with room, of each time; nil for any
}

// Descriptor is a descriptor of a request, and the expected status. The zero value of an
// expectation stands for any status.
type Descriptor struct {
	limiter.Descriptor

	Line int    // in the file, from 1
	Text string // as written

	// Expected each time.
	Rule     *string // path of the rule; "" for none
	Outcome  string  // one of Outcomes
	Requests *uint64 // of the limit that decided

	// Expected the last time.
	Remaining *uint64
	Wait      *time.Duration // until the same hits pass; compared in milliseconds, rounded up
	Reset     *time.Duration // until the key is idle; likewise
}

func (d *Descriptor) expects() bool {
	return d.Rule != nil || d.Outcome != "" || d.Requests != nil || d.Remaining != nil || d.Wait != nil || d.Reset != nil
}

// The outcomes, as the admin service names them.
const (
	ok         = "ok"          // the limits admit the hits
	overLimit  = "over_limit"  // a limit denies the hits
	shadowed   = "shadowed"    // the same in shadow mode: the descriptor passes
	unlimited  = "unlimited"   // a rule lets everything pass
	replaced   = "replaced"    // another rule of the request replaced the limits
	notLimited = "not_limited" // the rule has no limits
	unmatched  = "unmatched"   // no rule matches
	noDomain   = "no_domain"   // the domain has no rules
)

// Outcomes returns the outcomes that a descriptor may have.
func Outcomes() []string {
	return []string{ok, overLimit, shadowed, unlimited, replaced, notLimited, unmatched, noDomain}
}

// Result is the outcome of one test.
type Result struct {
	*Test
	Failures descriptors.Errors // each with the line of its step or descriptor; none: the test passed
}
