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
// character. A key in a map wins over a merge key `<<`, as YAML has it, in any order; a warning
// says where that makes a difference. A document in which that service ignores something loads with
// a warning. Keys that only Weir knows are mistakes wherever they have no meaning.
package descriptors

import (
	"encoding/binary"
	"encoding/json"
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

	root  node
	rules []*Rule // in the order of the document, Default last
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
	DetailedMetric bool           // metrics carry the values of all entries
	Metadata       map[string]any // JSON-like: nil, bool, float64, string, []any, map[string]any; may be nil
	Levels         []Level        // one for each entry of the descriptors that the rule matches, but the holder; none for a default

	// Begin and End are the keys of one more entry, the last, of a rule with a limit that has holders;
	// else both are "". The value of that entry is the name of the holder. The rule matches no
	// descriptor without that entry.
	Begin, End string

	detailed bool // DetailedMetric, or ValueToMetric of a level
	rank     int  // among the wildcards of its key, in file order from 1; 0 for other rules
}

// Level is the part of a rule about one entry.
type Level struct {
	Key            string
	Value          string // as configured, perhaps with wildcards; "" for a key alone
	ShareThreshold bool   // share_threshold: all values that match Value share one count
	ValueToMetric  bool   // value_to_metric: metrics carry the value of the entry
}

// appendMeaning appends all exported fields except ID, File and Line. Two rules have the same bytes
// only if these fields are equal.
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
		dst = appendFlags(dst, l.ShareThreshold, l.ValueToMetric)
	}
	return appendSized(appendSized(dst, r.Begin), r.End)
}
