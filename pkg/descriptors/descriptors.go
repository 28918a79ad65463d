// Package descriptors turns rule documents into one immutable set of rules, and finds the rule and the key of a descriptor.
//
// A rule document is the YAML (or JSON) format of envoyproxy/ratelimit and more: every valid file of that service loads
// unchanged and means the same. The package decides which limit applies and under which key it is counted; it does not know
// where counts live, nor what protocol asked. It reads bytes it is given, never files.
//
// Where it departs from that service, on purpose: a key and its value are never glued together, so that neither the rule nor the
// count of (a, b_c) is that of (a_b, c); a `*` in a key is a plain character; of a merge key `<<` and a key beside it the
// latter always counts, as YAML has it, wherever they stand (with a warning where that makes a difference). A document in which
// that service ignores something loads with a warning; keys that only Weir knows are errors wherever they have no meaning.
package descriptors

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Entry is one key and value of a descriptor. The key is not empty; the value may be.
type Entry struct {
	Key   string
	Value string
}

// Rules is the rules of all domains, immutable and safe for concurrent use. The zero value has none.
type Rules struct {
	domains map[string]*Domain
	all     []*Rule
}

// Domain is the rules that requests of one domain are looked up in. Immutable.
type Domain struct {
	Name    string
	File    string // the document it came from, as its Source named it
	Line    int    // of the document's domain, from 1
	Default *Rule  // for descriptors that match nothing; nil when there is none

	root  node
	rules []*Rule // in the order of the document, Default last
}

// Rule is a node of a domain's tree that has limits, or is unlimited, or says that there is none. Immutable; its slices and
// maps must not be changed.
type Rule struct {
	ID     int // 0 to Rules.Len()-1, unique within one Rules
	Domain string
	Path   string // entries from the root as configured, such as "path=/search,client_id"; "default" for a domain's default
	File   string // the document, as its Source named it
	Line   int    // of the descriptor in the document, from 1

	Name           string         // the name that all its limits have; "" when they have none or differ, see Limit.Name
	Replaces       []string       // names of the limits that are dropped from a request that matches this one
	Limits         []Limit        // all must admit; empty when Unlimited, and for a node that matches without limiting
	Unlimited      bool           // matches and always passes
	Shadow         bool           // decides and counts but reports OK
	Quota          bool           // over limit only when all quota limits of the request are
	DetailedMetric bool           // metrics carry the values of all entries
	Metadata       map[string]any // JSON-like: nil, bool, float64, string, []any, map[string]any; nil when there is none

	levels   []level
	detailed bool // DetailedMetric, or a level's valueToMetric
}

// level is what a rule says of one entry of the descriptors it matches.
type level struct {
	key           string
	value         string // as configured; "" for a key alone
	shared        bool   // share_threshold: in keys the value as configured stands for that of the entry
	valueToMetric bool   // value_to_metric
}

// Limit is one limit of a rule.
type Limit struct {
	algorithms.Limit

	Name          string       // as configured, for replaces and for the answer; "" when it has none
	CountRejected bool         // hits count even when they are denied
	OnStoreError  OnStoreError // as configured for the limit, else for its rule, else in the document's defaults
	Unit          Unit         // as configured; of a period, the largest unit it is a whole multiple of, else UnitUnknown
	Multiplier    uint32       // Period in Units, at least 1; 0 when the unit is UnitUnknown

	suffix string // ends a key: which limit of the rule this is
}

// Unit is a unit of time. The numbers are those of envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit.
type Unit uint8

// The units. A month has 30 days, a year 365.
const (
	UnitUnknown Unit = 0
	Second      Unit = 1
	Minute      Unit = 2
	Hour        Unit = 3
	Day         Unit = 4
	Month       Unit = 5
	Year        Unit = 6
	Week        Unit = 7
)

// Duration returns the length of the unit, 0 for UnitUnknown and for numbers that are no unit.
func (u Unit) Duration() time.Duration {
	const day = 24 * time.Hour
	switch u {
	case Second:
		return time.Second
	case Minute:
		return time.Minute
	case Hour:
		return time.Hour
	case Day:
		return day
	case Week:
		return 7 * day
	case Month:
		return 30 * day
	case Year:
		return 365 * day
	default:
		return 0
	}
}
