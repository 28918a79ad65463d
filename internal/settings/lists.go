package settings

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// List accepts texts, each with a nil error of check; a nil check accepts every text. Commas
// separate the items of a text. List trims the items and drops empty ones. Each line of its error
// is about one item.
func List(to *[]string, kind string, check func(string) error) Value {
	return Value{Kind: kind, List: true, Set: func(raw any) error {
		var items []string
		switch v := raw.(type) {
		case string:
			items = strings.Split(v, ",")
		case []any:
			for _, item := range v {
				s, ok := item.(string)
				if !ok {
					return fmt.Errorf("%v: must be text", item)
				}
				items = append(items, s)
			}
		default:
			return fmt.Errorf("%v: must be a list of texts", raw)
		}
		var errs []error
		kept := make([]string, 0, len(items))
		for _, s := range items {
			if s = strings.TrimSpace(s); s == "" {
				continue
			}
			if check != nil {
				errs = append(errs, check(s))
			}
			kept = append(kept, s)
		}
		*to = kept
		return errors.Join(errs...)
	}}
}

// Words accepts a text of items with commas between them, and keeps the items as they are. Blank
// text is an empty list.
func Words(to *[]string) Value {
	return textual("a,b", func(s string) error {
		*to = nil
		if strings.TrimSpace(s) != "" {
			*to = strings.Split(s, ",")
		}
		return nil
	})
}

// Pairs accepts key:value with commas between the pairs. A colon cannot be part of a key or a
// value. Blank text has no pairs.
func Pairs(to *map[string]string) Value {
	return pairs("k:v,k:v", ":", strconv.Quote, to)
}

// SecretPairs is Pairs. No error shows a pair.
func SecretPairs(to *map[string]string) Value {
	hide := func(string) string { return "one of the pairs" }
	v := pairs("k:v,k:v", ":", hide, to)
	set := v.Set
	v.Set = func(raw any) error {
		if _, ok := raw.(string); !ok {
			return errSecret
		}
		return set(raw)
	}
	return v
}

// Equations accepts key=value with commas between the pairs. A value may contain further equal
// signs. Blank text has no pairs.
func Equations(to *map[string]any) Value {
	return pairs("k=v,k=v", "=", strconv.Quote, to)
}

// pairs reads pairs; V is string or any. show words a pair for an error.
func pairs[V any](kind, between string, show func(pair string) string, to *map[string]V) Value {
	return textual(kind, func(s string) error {
		*to = nil
		if strings.TrimSpace(s) == "" {
			return nil
		}
		all := make(map[string]V)
		var errs []error
		for pair := range strings.SplitSeq(s, ",") {
			key, content, found := strings.Cut(pair, between)
			if !found || between == ":" && strings.Contains(content, ":") {
				errs = append(errs, fmt.Errorf("%s: must be a key, one %q and a value, with commas between such pairs", show(pair), between))
				continue
			}
			all[key], _ = any(content).(V)
		}
		if len(errs) == 0 {
			*to = all
		}
		return errors.Join(errs...)
	})
}
