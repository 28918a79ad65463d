package descriptors

import (
	"fmt"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Sharing decides how processes share the count of a limit that a shared store keeps.
type Sharing uint8

// The choices.
const (
	SharingUnset  Sharing = iota // the document does not say
	SharingLeased                // a process may take hits of a hot key in advance, and spend these hits by itself
	SharingExact                 // the store decides each hit
)

// String returns the name as in rule files; "unset" for SharingUnset.
func (s Sharing) String() string {
	if names := [...]string{"unset", "leased", "exact"}; int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("sharing(%d)", uint8(s))
}

// ParseSharing returns the choice of that name. "unset" names no choice.
func ParseSharing(name string) (Sharing, bool) {
	for s := SharingLeased; s <= SharingExact; s++ {
		if s.String() == name {
			return s, true
		}
	}
	return SharingUnset, false
}

// sharing decodes sharing, SharingUnset when the map does not have it.
func (t *tree) sharing(fs fields) Sharing {
	at, given := fs.get("sharing")
	if !given {
		return SharingUnset
	}
	name, isText := t.text(at)
	s, ok := ParseSharing(name)
	if isText && !ok {
		t.fail(at, "%s is not known, must be leased or exact", quote(name))
	}
	return s
}

// sharingOf decodes the sharing of a limit whose other options are decoded.
func (t *tree) sharingOf(fs fields, l *Limit) Sharing {
	s := t.sharing(fs)
	if s != SharingLeased {
		return s
	}
	at, _ := fs.get("sharing")
	switch {
	case l.Algorithm == algorithms.SlidingWindowLog:
		t.warn(at, at.line, "has no effect: sliding_window_log is never leased")
	case l.CountRejected && l.Algorithm != algorithms.FixedWindow:
		t.warn(at, at.line, "has no effect: with count_rejected only fixed_window is leased")
	}
	return s
}
