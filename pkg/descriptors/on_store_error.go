package descriptors

import "fmt"

// OnStoreError says what becomes of a limit's hits when the place of its counts cannot be asked.
type OnStoreError uint8

// The choices.
const (
	OnStoreErrorUnset OnStoreError = iota // the document does not say
	OnStoreErrorLocal                     // they are counted in memory until it can be asked again
	OnStoreErrorAllow                     // they pass
	OnStoreErrorDeny                      // they are denied
)

// String returns the name as in rule files; "unset" for OnStoreErrorUnset.
func (o OnStoreError) String() string {
	switch o {
	case OnStoreErrorUnset:
		return "unset"
	case OnStoreErrorLocal:
		return "local"
	case OnStoreErrorAllow:
		return "allow"
	case OnStoreErrorDeny:
		return "deny"
	default:
		return fmt.Sprintf("on_store_error(%d)", uint8(o))
	}
}

// ParseOnStoreError returns the choice of that name. "unset" is none.
func ParseOnStoreError(name string) (OnStoreError, bool) {
	for o := OnStoreErrorLocal; o <= OnStoreErrorDeny; o++ {
		if o.String() == name {
			return o, true
		}
	}
	return OnStoreErrorUnset, false
}

// onStoreError decodes what a map says of it, OnStoreErrorUnset when it says nothing.
func (t *tree) onStoreError(fs fields) OnStoreError {
	at, ok := fs.get("on_store_error")
	if !ok {
		return OnStoreErrorUnset
	}
	name, ok := t.text(at)
	if !ok {
		return OnStoreErrorUnset
	}
	o, ok := ParseOnStoreError(name)
	if !ok {
		t.fail(at, "%s is not known, must be local, allow or deny", quote(name))
	}
	return o
}

// onStoreErrorOf decodes what a descriptor says of all its limits. One of Weir's own keys must have a meaning where it stands:
// here, limits beside it.
func (t *tree) onStoreErrorOf(fs fields, all []limit) OnStoreError {
	o := t.onStoreError(fs)
	at, ok := fs.get("on_store_error")
	if !ok {
		return o
	}
	one, isOne := fs.get("rate_limit")
	_, isMany := fs.get("rate_limits")
	switch {
	case !isMany && (!isOne || isNull(one)):
		t.fail(at, "is for the descriptor's own limits, and it has none: must stand beside rate_limit or rate_limits, or in defaults")
	case len(all) == 1 && all[0].unlimited:
		t.fail(at, "is for limits, and the descriptor is unlimited: must be left out")
	}
	return o
}
