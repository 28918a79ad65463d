// Package settings reads the values of settings: flags, environment variables and keys of a settings file.
//
// A program keeps a table of its settings. Each row has a Value, which checks one setting and stores its meaning. The table
// decides names, defaults and precedence; this package decides which text is valid.
package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Value reads one kind of setting. Make one with the functions of this package. A Value is not safe for concurrent use.
type Value struct {
	Kind string // how help names the kind, such as "duration" or "text|json"
	List bool   // the setting is a list; a repeated flag adds to the list

	// Set stores a setting, or returns an error with the valid values. raw is text from a flag or the environment. A settings
	// file also gives numbers, booleans, lists and maps.
	Set func(raw any) error
}

// Mistakes puts the name of a setting before each line of an error. A nil error has no mistakes.
func Mistakes(name string, err error) []error {
	if err == nil {
		return nil
	}
	var all []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		all = append(all, fmt.Errorf("%s: %s", name, line))
	}
	return all
}

// Text accepts any text for which check returns nil. A nil check accepts every text.
func Text(to *string, kind string, check func(string) error) Value {
	return textual(kind, func(s string) error {
		if check != nil {
			if err := check(s); err != nil {
				return fmt.Errorf("%q: %w", s, err)
			}
		}
		*to = s
		return nil
	})
}

// textual returns a Value that accepts text alone.
func textual(kind string, set func(s string) error) Value {
	return Value{Kind: kind, Set: func(raw any) error {
		s, ok := raw.(string)
		if !ok {
			return fmt.Errorf("%v: must be text", raw)
		}
		return set(s)
	}}
}

// errSecret refuses a secret that is not text, without showing the secret.
var errSecret = errors.New("must be text: put it in quotes")

// Secret accepts any text. No error shows the value.
func Secret(to *string) Value {
	return Value{Kind: "secret", Set: func(raw any) error {
		s, ok := raw.(string)
		if !ok {
			return errSecret
		}
		*to = s
		return nil
	}}
}

// Choice accepts one of several words.
func Choice(to *string, words ...string) Value { return OneOf(to, words, words...) }

// OneOf accepts one of several words, and stores the value that belongs to the word.
func OneOf[V any](to *V, words []string, values ...V) Value {
	return oneOf(to, words, values, func(a, b string) bool { return a == b })
}

// OneOfAnyCase is OneOf for words in upper or lower case.
func OneOfAnyCase[V any](to *V, words []string, values ...V) Value {
	return oneOf(to, words, values, strings.EqualFold)
}

func oneOf[V any](to *V, words []string, values []V, equal func(a, b string) bool) Value {
	return textual(strings.Join(words, "|"), func(s string) error {
		i := slices.IndexFunc(words, func(w string) bool { return equal(w, s) })
		if i < 0 {
			return fmt.Errorf("%q: must be %s", s, WordList(words, "or"))
		}
		*to = values[i]
		return nil
	})
}

// Number accepts a whole number from min to max, in base 10.
func Number(to *int, min, max int) Value { return number(to, 10, min, max) }

// Integer accepts a whole number from min to max in the syntax of Go, such as 0x1F or 1_000.
func Integer(to *int, min, max int) Value { return number(to, 0, min, max) }

func number(to *int, base, min, max int) Value {
	return Value{Kind: "number", Set: func(raw any) error {
		n, ok := whole(raw, base)
		if !ok || n < min || n > max {
			return fmt.Errorf("%v: must be a whole number %s", quoted(raw), interval(min, max))
		}
		*to = n
		return nil
	}}
}

// interval words the bounds of a number.
func interval(min, max int) string {
	switch {
	case min == math.MinInt && max == math.MaxInt:
		return "of 64 bits"
	case max == math.MaxInt:
		return fmt.Sprintf("of at least %d", min)
	default:
		return fmt.Sprintf("from %d to %d", min, max)
	}
}

// whole reads a whole number from text, and from the three formats of settings files.
func whole(raw any, base int) (int, bool) {
	switch n := raw.(type) {
	case string:
		i, err := strconv.ParseInt(n, base, strconv.IntSize)
		return int(i), err == nil
	case int:
		return n, true
	case int64:
		return int(n), true
	case float64: // JSON has no other numbers
		return int(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	}
	return 0, false
}

// Fraction accepts a number of at least 0. The number is rounded to 32 or 64 bits.
func Fraction(to *float64, bits int) Value {
	return textual("number", func(s string) error {
		f, err := strconv.ParseFloat(s, bits)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return fmt.Errorf("%q: must be a number of at least 0, such as 0.8", s)
		}
		*to = f
		return nil
	})
}

// Rate accepts a number of events and a time, such as 1/s or 10/m, and stores the events per second. 0 and the empty text mean no events.
func Rate(to *float64, max float64) Value {
	return textual("rate", func(s string) error {
		per, err := RateOf(s, max)
		if err == nil {
			*to = per
		}
		return err
	})
}

// RateOf reads a text as [Rate] does.
func RateOf(s string, max float64) (perSecond float64, err error) {
	if s == "" || s == "0" {
		return 0, nil
	}
	number, unit, _ := strings.Cut(s, "/")
	n, err := strconv.ParseFloat(number, 64)
	seconds := map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]
	if perSecond = n / seconds; err != nil || seconds == 0 || !(perSecond >= 0 && perSecond <= max) {
		return 0, fmt.Errorf("%q: must be a number per s, m or h, such as 1/s or 10/m, of at most %v/s, or 0", s, max)
	}
	return perSecond, nil
}

// Bool accepts true and false, as [strconv.ParseBool] spells them.
func Bool(to *bool) Value {
	return Value{Kind: "bool", Set: func(raw any) error {
		is, ok := raw.(bool)
		if s, isText := raw.(string); isText {
			var err error
			is, err = strconv.ParseBool(s)
			ok = err == nil
		}
		if !ok {
			return fmt.Errorf("%v: must be true or false", quoted(raw))
		}
		*to = is
		return nil
	}}
}

// Not is Bool, and stores the opposite.
func Not(to *bool) Value {
	v := Bool(to)
	set := v.Set
	v.Set = func(raw any) error {
		err := set(raw)
		*to = !*to
		return err
	}
	return v
}

// Duration accepts a Go duration from min to max.
func Duration(to *time.Duration, min, max time.Duration) Value {
	return Value{Kind: "duration", Set: func(raw any) error {
		s, ok := raw.(string)
		d, err := time.ParseDuration(s)
		if ok && err == nil && d >= min && d <= max {
			*to = d
			return nil
		}
		if max == math.MaxInt64 {
			return fmt.Errorf("%v: must be a duration of at least %v, such as 10s, 250ms or 0", quoted(raw), min)
		}
		return fmt.Errorf("%v: must be a duration from %v to %v, such as 1s, 250ms or 1m30s", quoted(raw), min, max)
	}}
}

// Mode accepts the permissions of a file, as text in octal. A number in a settings file has lost its base: 432 may mean 0660 or
// 0432. So Mode refuses numbers.
func Mode(to *fs.FileMode) Value {
	return Value{Kind: "mode", Set: func(raw any) error {
		s, ok := raw.(string)
		if !ok {
			return errors.New(`must be the permissions of a file in octal, in quotes, such as "0660"`)
		}
		n, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 16)
		if err != nil || n > 0o777 {
			return fmt.Errorf("%q: must be the permissions of a file in octal, such as 0660", s)
		}
		*to = fs.FileMode(n)
		return nil
	}}
}

// List accepts texts, each with a nil error of check; a nil check accepts every text. Commas separate the items of a text. List
// trims the items and drops empty ones. Each line of its error is about one item.
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

// Words accepts a text of items with commas between them, and keeps the items as they are. Blank text is an empty list.
func Words(to *[]string) Value {
	return textual("a,b", func(s string) error {
		*to = nil
		if strings.TrimSpace(s) != "" {
			*to = strings.Split(s, ",")
		}
		return nil
	})
}

// Pairs accepts key:value with commas between the pairs. A colon cannot be part of a key or a value. Blank text has no pairs.
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

// Equations accepts key=value with commas between the pairs. A value may contain further equal signs. Blank text has no pairs.
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

// HeaderName accepts the name of an HTTP header.
func HeaderName(s string) error {
	if !httpguts.ValidHeaderFieldName(s) {
		return errors.New("must be the name of an HTTP header")
	}
	return nil
}

// WordList joins words for a sentence: "a, b or c".
func WordList(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " " + last + " " + words[len(words)-1]
}

// quoted quotes a text and leaves other values as they are.
func quoted(raw any) any {
	if s, ok := raw.(string); ok {
		return strconv.Quote(s)
	}
	return raw
}
