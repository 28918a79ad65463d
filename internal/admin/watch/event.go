package watch

import (
	"time"
	"unsafe"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
	"github.com/weirproxy/weir/pkg/store"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// event is one answered request, in memory of its own. Immutable.
type event struct {
	begun       time.Time
	took        time.Duration
	domain      string
	overLimit   bool
	failure     string              // of a request that failed; else ""
	rules       *descriptors.Domain // that decided; nil when the domain has none
	told        bool                // the limits have their sources
	descriptors []descriptor
	quota       *quota.Event // nil for a request
	size        int          // bytes
}

type descriptor struct {
	entries  []descriptors.Entry
	hits     int64
	outcome  adminv1.Outcome
	rule     *descriptors.Rule // nil when nothing matched
	limits   []limit
	grant    *limiter.Grant // of the deciding limit, or without limits; nil for none
	override bool           // the limit came with the descriptor
}

type limit struct {
	key      string
	limit    *descriptors.Limit
	decision algorithms.Decision
	blocked  time.Duration // the wait until the end of a block; 0: the key is not blocked
	source   store.Source
	grant    *limiter.Grant // changed the limit; nil for none
}

// small is an event with the memory for one descriptor, which most requests have.
type small struct {
	event
	descriptors [1]descriptor
	entries     [3]descriptors.Entry
	limits      [1]limit
}

// Memory of the parts of an event, in bytes. A limit in a message takes about as much as the texts
// here.
const (
	eventBytes      = int(unsafe.Sizeof(small{}))
	descriptorBytes = int(unsafe.Sizeof(descriptor{}))
	entryBytes      = int(unsafe.Sizeof(descriptors.Entry{}))
	limitBytes      = int(unsafe.Sizeof(limit{})) + 100
)

// size is the memory of a request as an event, in bytes.
type size struct{ all, texts int }

func sizeOf(o *limiter.Observed) size {
	parts, texts := eventBytes, len(o.Request.Domain)
	for i := range o.Request.Descriptors {
		entries := o.Request.Descriptors[i].Entries
		parts += descriptorBytes + len(entries)*entryBytes
		for n := range entries {
			texts += len(entries[n].Key) + len(entries[n].Value)
		}
		if o.Err == nil {
			for c := range o.Verdict.Charged(i) {
				parts += limitBytes
				texts += len(c.Key)
			}
		}
	}
	return size{parts + texts, texts}
}

// newEvent copies a request whose size is known. All texts share one string.
func newEvent(o *limiter.Observed, is size) *event {
	all := new(small)
	e := &all.event
	e.begun, e.took, e.size = o.Begun, o.Took, is.all
	if o.Err != nil {
		e.failure = o.Err.Error()
	} else {
		e.overLimit, e.rules, e.told = o.Verdict.OverLimit, o.Verdict.Domain(), o.Verdict.TellSource
	}
	t := texts{buffer: make([]byte, 0, is.texts)}
	e.domain = add(&t, o.Request.Domain)
	e.descriptors = all.descriptors[:0]
	entries, limits := all.entries[:0], all.limits[:0]
	for i := range o.Request.Descriptors {
		in := &o.Request.Descriptors[i]
		out := descriptor{hits: o.Request.HitsOf(i), outcome: adminv1.Outcome_OUTCOME_FAILED}
		from := len(entries)
		for _, entry := range in.Entries {
			entries = append(entries, descriptors.Entry{Key: add(&t, entry.Key), Value: add(&t, entry.Value)})
		}
		out.entries = entries[from:len(entries):len(entries)]
		if o.Err == nil {
			s := &o.Verdict.Statuses[i]
			out.hits, out.outcome, out.rule, out.grant, out.override = s.Hits, outcome(o.Verdict, i), s.Rule, s.Grant, s.Overridden
			first := len(limits)
			for c := range o.Verdict.Charged(i) {
				limits = append(limits, limit{add(&t, c.Key), kept(s.Rule, c.Limit), c.Decision, c.Blocked, c.Source, c.Grant})
			}
			out.limits = limits[first:len(limits):len(limits)]
		}
		e.descriptors = append(e.descriptors, out)
	}
	return e
}

// kept returns a limit that never changes: a limit of the rule itself, or a copy. Other limits are
// in memory of the verdict.
func kept(r *descriptors.Rule, l *descriptors.Limit) *descriptors.Limit {
	if r != nil {
		for i := range r.Limits {
			if l == &r.Limits[i] {
				return l
			}
		}
	}
	own := *l
	return &own
}

// texts copies texts into one buffer, which must have room.
type texts struct{ buffer []byte }

// add returns the copy, which never changes again.
func add[T string | []byte](t *texts, text T) string {
	from := len(t.buffer)
	t.buffer = append(t.buffer, text...)
	return unsafe.String(unsafe.SliceData(t.buffer[from:]), len(text))
}
