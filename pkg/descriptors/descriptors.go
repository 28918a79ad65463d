// Package descriptors turns rule documents into one immutable set of rules, and finds the rule and
// the key of a descriptor.
//
// A rule document has the YAML (or JSON) format of envoyproxy/ratelimit and more: every valid file
// of that service loads unchanged and means the same. The package decides which limit applies and
// under which key hits are counted. The package does not know the store or the protocol, and reads
// bytes, never files.
//
// The package differs from that service on purpose in three points. A key and its value are never
// joined: (a, b_c) has another rule and another count than (a_b, c). A `*` in a key is a plain
// character. A key in a map wins over a merge key `<<`, as YAML has it, in any order. A warning
// says where that makes a difference. A document in which that service ignores something loads with
// a warning. Keys that only Weir knows are mistakes wherever they have no meaning.
package descriptors

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"sync"
)

// Entry is one key and value of a descriptor. The key is not empty; the value may be.
type Entry struct {
	Key   string
	Value string
}

// Domain holds the rules for requests of one domain. Immutable.
type Domain struct {
	Name    string
	File    string // the name of the Source
	Line    int    // of the document's domain, from 1; 0 in a generated document
	Default *Rule  // for descriptors that match nothing; may be nil

	root   node
	rules  []*Rule  // in the order of the document, Default last
	groups []string // of its rules, in that order
}

// Rule is a node of a domain's tree: its limits apply to descriptors that end there. A node without
// limits only leads to the nodes below it, and a descriptor that ends there is not limited.
// Immutable: callers must not change its slices and maps.
type Rule struct {
	ID     int // 0 to Rules.Len()-1, unique within one Rules
	Domain string
	Path   string // entries from the root as configured, such as "path=/search,client_id"; "default" for a domain's default
	File   string // the document, as its Source named it
	Line   int    // of the descriptor in the document, from 1; 0 in a generated document

	Name           string         // the name that all its limits have; "" when they have none or differ, see Limit.Name
	Replaces       []string       // names of the limits that are dropped from a request that matches this rule
	Limits         []Limit        // all must admit; empty when Unlimited, and for a node without limits
	Unlimited      bool           // matches and always passes
	Shadow         bool           // decides and counts but reports OK
	Quota          bool           // over limit only when all quota limits of the request are
	Group          Group          // of a quota; the zero value: none
	DetailedMetric bool           // metrics carry the values of all entries
	Metadata       map[string]any // JSON-like: nil, bool, float64, string, []any, map[string]any; may be nil
	Levels         []Level        // one for each entry of the descriptors that the rule matches, but the holder; none for a default

	// Begin and End are the keys of one more entry, the last, of a rule with a limit that has
	// holders; else both are "". Both are the same key for a pair. The value of that entry is the
	// name of the holder. The rule matches no descriptor without that entry.
	Begin, End string

	// Priced says that a limit has prices. The descriptors of the rule then have the entry of
	// UsageKey before the holder. A rule with prices has holders.
	Priced bool

	// Divided says that each process which shares a store has a part of the limits.
	Divided bool

	detailed bool  // DetailedMetric, or ValueToMetric of a level
	rank     int32 // among the wildcards of its key, in file order from 1; 0 for other rules
}

// Group is a group of quotas. All limits of a group must admit a request. Of several groups, one
// that does suffices.
type Group struct {
	Name string
	Rank int // among the groups of the domain, by their first rule in the document, from 1
}

// Level is the part of a rule about one entry.
type Level struct {
	Key            string
	Value          string   // as configured, perhaps with wildcards; "" for a key alone; the text of Match
	Match          *Matcher // in place of a text under value; nil without
	ShareThreshold bool     // share_threshold: all values that match Value share one count
	ValueToMetric  bool     // value_to_metric: metrics carry the value of the entry
}

// appendMeaning appends all exported fields except ID, File and Line, and Priced and Divided,
// which the limits say. Two rules have the same bytes only if these fields are equal.
func (r *Rule) appendMeaning(dst []byte) []byte {
	dst = appendSized(dst, r.Domain)
	dst = appendSized(dst, r.Path)
	dst = appendSized(dst, r.Name)
	dst = binary.AppendUvarint(dst, uint64(len(r.Replaces)))
	for _, name := range r.Replaces {
		dst = appendSized(dst, name)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Limits)))
	for i := range r.Limits {
		dst = r.Limits[i].appendMeaning(dst)
	}
	dst = binary.AppendUvarint(appendSized(dst, r.Group.Name), uint64(r.Group.Rank))
	dst = appendFlags(dst, r.Unlimited, r.Shadow, r.Quota, r.DetailedMetric, r.Metadata != nil)
	if r.Metadata != nil {
		metadata, err := json.Marshal(r.Metadata)
		if err != nil { // a document has no value that JSON lacks
			metadata = []byte(err.Error())
		}
		dst = appendSized(dst, string(metadata))
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Levels)))
	for _, l := range r.Levels {
		dst = appendSized(dst, l.Key)
		dst = appendSized(dst, l.Value)
		if l.Match != nil {
			dst = l.Match.appendMeaning(append(dst, hasMatch))
		}
		dst = appendFlags(dst, l.ShareThreshold, l.ValueToMetric)
	}
	return appendSized(appendSized(dst, r.Begin), r.End)
}

// Rules is the rules of all domains, immutable and safe for concurrent use. The zero value has no
// rules.
type Rules struct {
	domains map[string]*Domain
	only    *Domain // the one of domains, if there is one
	all     []*Rule

	mostCharges int  // of one rule
	learns      bool // a limit learns its estimates
	overlay     bool // the sources had an entry of an overlay
	zoned       bool // a calendar has a time zone other than UTC

	once     sync.Once // for digest
	meanings []meaning // of all
	hash     string
}

// Domain returns the domain of that name, or nil. Names are case-sensitive.
func (r *Rules) Domain(name string) *Domain {
	if r.only != nil && r.only.Name == name { // most programs have one, and a look into the map takes three times as long
		return r.only
	}
	return r.domains[name]
}

// Domains returns all domains, sorted by name.
func (r *Rules) Domains() []*Domain {
	return slices.SortedFunc(maps.Values(r.domains), func(a, b *Domain) int { return cmp.Compare(a.Name, b.Name) })
}

// All returns every node of every domain, with limits or without, in the order of the IDs. Domains
// are sorted by name. Within a domain, the order is that of the document, with the default last.
// The caller must not change the slice.
func (r *Rules) All() []*Rule { return r.all }

// NeedsZones reports whether a limit, or a line of a table, follows the calendar of a time zone
// other than UTC.
func (r *Rules) NeedsZones() bool { return r.zoned }

// MostCharges returns the number of charges of the rule with the most charges, see [Rule.Charges].
func (r *Rules) MostCharges() int { return r.mostCharges }

// Len returns the length of All: IDs are below it. [Rules.Count] counts the rules in the sense of
// the documentation.
func (r *Rules) Len() int { return len(r.all) }

// Count returns the number of rules in the sense of the documentation: nodes that have limits or
// are unlimited.
func (r *Rules) Count() int {
	n := 0
	for _, rule := range r.all {
		if rule.limiting() {
			n++
		}
	}
	return n
}

// limiting reports whether the node says how much may pass: it has limits or is unlimited.
func (r *Rule) limiting() bool { return len(r.Limits) > 0 || r.Unlimited }

// Hash identifies the meaning of the rules, in 16 hexadecimal digits: the beginning of a SHA-256
// over all nodes and domains, sorted. Names, lines and the order of files do not change the hash.
// The order of descriptors in a document changes the hash only for wildcards, where the order
// decides matches. A new version of this package may give the same rules another hash. The first
// call takes about a microsecond per rule.
func (r *Rules) Hash() string {
	r.once.Do(r.digest)
	return r.hash
}

// Detailed reports whether metrics distinguish the descriptors of this rule by values: by
// detailed_metric of the rule, or by value_to_metric of a level. See [Rule.AppendMetricValue].
func (r *Rule) Detailed() bool { return r.detailed }

// AppendMetricValue appends to dst the name of a descriptor in metrics: for each level a text
// `key_value`, joined by ".". The rule must match the descriptor. With detailed_metric of the rule
// or value_to_metric of a level, the value comes from the entry. Otherwise the value is as
// configured: the pattern of a wildcard, nothing for a key alone. A level with share_threshold
// always shows the pattern. A level with a path template, or with group_by, shows the template or
// the subnet in place of the value. The entry that names a holder is left out.
// envoyproxy/ratelimit uses the same names, behind the domain.
//
// The text is for people: two descriptors may have the same text, and values may hold any bytes.
func (r *Rule) AppendMetricValue(dst []byte, entries []Entry) []byte {
	entries = r.WithoutHolder(entries)
	for i := range entries {
		if i > 0 {
			dst = append(dst, '.')
		}
		dst = r.appendLevel(dst, i, entries[i])
	}
	return dst
}

// appendLevel appends the text of one level: `key_value`, or the key alone when there is no value.
func (r *Rule) appendLevel(dst []byte, i int, e Entry) []byte {
	if i < len(r.Levels) {
		switch l := &r.Levels[i]; {
		case l.ShareThreshold || !r.DetailedMetric && !l.ValueToMetric:
			e.Value = l.Value
		case l.Match != nil:
			return l.Match.appendCounted(append(append(dst, e.Key...), '_'), e.Value)
		}
	}
	return e.appendName(dst)
}

// appendName appends `key_value`, or the key alone when there is no value.
func (e Entry) appendName(dst []byte) []byte {
	dst = append(dst, e.Key...)
	if e.Value == "" {
		return dst
	}
	return append(append(dst, '_'), e.Value...)
}

// MetricLevels returns the texts that AppendMetricValue joins. Without entries, the values are as
// configured. A domain's default has no levels.
func (r *Rule) MetricLevels(entries []Entry) []string {
	levels := make([]string, 0, len(r.Levels))
	if entries == nil {
		for _, l := range r.Levels {
			levels = append(levels, string(Entry{l.Key, l.Value}.appendName(nil)))
		}
		return levels
	}
	entries = r.WithoutHolder(entries)
	for i := range entries {
		levels = append(levels, string(r.appendLevel(nil, i, entries[i])))
	}
	return levels
}
