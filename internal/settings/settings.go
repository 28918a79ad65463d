// Package settings reads the values of settings: flags, environment variables and keys of a
// settings file.
//
// A program keeps a table of its settings. Each row has a Value, which checks one setting and
// stores its meaning. The table decides names, defaults and precedence; this package decides which
// text is valid.
package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/weirproxy/weir/internal/timespan"
)

// Value reads one kind of setting. Make one with the functions of this package. A Value is not safe
// for concurrent use.
type Value struct {
	Kind string // how help names the kind, such as "duration" or "text|json"
	List bool   // the setting is a list; a repeated flag adds to the list

	// Set stores a setting, or returns an error with the valid values. raw is text from a flag or the
	// environment. A settings file also gives numbers, booleans, lists and maps.
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

// Among returns the check of a text that must be one of several words.
func Among(words []string) func(string) error {
	return func(s string) error { return Choice(new(string), words...).Set(s) }
}

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

// Duration accepts a duration from min to max, see package timespan.
func Duration(to *time.Duration, min, max time.Duration) Value {
	return Value{Kind: "duration", Set: func(raw any) error {
		s, ok := raw.(string)
		d, err := timespan.Parse(s)
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

// Mode accepts the permissions of a file, as text in octal. A number in a settings file has lost
// its base: 432 may mean 0660 or 0432. So Mode refuses numbers.
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

// OfKubernetes reports whether Kubernetes sets an environment variable for a Service.
func OfKubernetes(name, text string) bool {
	return regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`).MatchString(name) ||
		strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://")
}
