package descriptors

import "fmt"

// OnStoreError decides about a limit's hits while the store that counts them cannot be reached.
type OnStoreError uint8

// The choices.
const (
	OnStoreErrorUnset OnStoreError = iota // the document does not say
	OnStoreErrorLocal                     // count in memory until the store can be reached again
	OnStoreErrorAllow                     // let all hits pass
	OnStoreErrorDeny                      // deny all hits
)

// String returns the name as in rule files; "unset" for OnStoreErrorUnset.
func (o OnStoreError) String() string {
	if names := [...]string{"unset", "local", "allow", "deny"}; int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("on_store_error(%d)", uint8(o))
}

// ParseOnStoreError returns the choice of that name. "unset" names no choice.
func ParseOnStoreError(name string) (OnStoreError, bool) {
	for o := OnStoreErrorLocal; o <= OnStoreErrorDeny; o++ {
		if o.String() == name {
			return o, true
		}
	}
	return OnStoreErrorUnset, false
}

// onStoreError decodes on_store_error, OnStoreErrorUnset when the map does not have it.
func (t *tree) onStoreError(fs fields) OnStoreError {
	at, given := fs.get("on_store_error")
	if !given {
		return OnStoreErrorUnset
	}
	name, isText := t.text(at)
	o, ok := ParseOnStoreError(name)
	if isText && !ok {
		t.fail(at, "%s is not known, must be local, allow or deny", quote(name))
	}
	return o
}

// onStoreErrorOf decodes the on_store_error of a descriptor, which is for its own limits: without
// limits it is a mistake.
func (t *tree) onStoreErrorOf(fs fields, all []limit) OnStoreError {
	o := t.onStoreError(fs)
	at, ok := fs.get("on_store_error")
	_, many := fs.get("rate_limits")
	switch {
	case !ok:
	case !many && !fs.has("rate_limit"):
		t.fail(at, "is for the descriptor's own limits, and it has none: must stand beside rate_limit or rate_limits, or in defaults")
	case len(all) == 1 && all[0].unlimited:
		t.fail(at, "is for limits, and the descriptor is unlimited: must be left out")
	}
	return o
}
