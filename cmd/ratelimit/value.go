package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// value is how the text of a variable is read. The readings are those of the library that the original uses (envconfig): a
// variable that is there and empty is empty text, no text at all for everything else, and a mistake where a number must be.
type value struct {
	kind  string                  // as the document shows it
	store func(text string) error // keeps what the text means; the error says what is allowed
}

// text is any text that check accepts; nil accepts all.
func text(to *string, check func(string) error) value {
	return value{"text", func(s string) error {
		if check != nil {
			if err := check(s); err != nil {
				return fmt.Errorf("%q: %w", s, err)
			}
		}
		*to = s
		return nil
	}}
}

// secret is any text, which no message shows.
func secret(to *string) value {
	return value{"text", func(s string) error { *to = s; return nil }}
}

// word is one of several words, in any case; it is kept in the case of the list.
func word(to *string, of ...string) value {
	return value{strings.Join(of, ", "), func(s string) error {
		i := slices.IndexFunc(of, func(w string) bool { return strings.EqualFold(w, s) })
		if i < 0 {
			return fmt.Errorf("%q: must be one of %s", s, strings.Join(of, ", "))
		}
		*to = of[i]
		return nil
	}}
}

// number is a whole number from least to most, in base 10 or, with 0x, 0o or 0b before it, another.
func number(to *int, least, most int) value {
	return value{"number", func(s string) error {
		n, err := strconv.ParseInt(s, 0, 64)
		if err != nil || n < int64(least) || n > int64(most) {
			return fmt.Errorf("%q: must be a whole number %s", s, bounds(least, most))
		}
		*to = int(n)
		return nil
	}}
}

// bounds words what a number may be.
func bounds(least, most int) string {
	switch {
	case least == math.MinInt && most == math.MaxInt:
		return "of 64 bits"
	case most == math.MaxInt:
		return fmt.Sprintf("of at least %d", least)
	default:
		return fmt.Sprintf("from %d to %d", least, most)
	}
}

// port is the number of a port; 0 is any that is free.
func port(to *int) value { return number(to, 0, math.MaxUint16) }

// fraction is a number of at least 0. bits is 32 or 64: what it is rounded to.
func fraction(to *float64, bits int) value {
	return value{"number", func(s string) error {
		f, err := strconv.ParseFloat(s, bits)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return fmt.Errorf("%q: must be a number of at least 0, such as 0.8", s)
		}
		*to = f
		return nil
	}}
}

// boolean is true or false: 1, t, T, true, TRUE, True and so on.
func boolean(to *bool) value {
	return value{"bool", func(s string) error {
		is, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q: must be true or false", s)
		}
		*to = is
		return nil
	}}
}

// duration is a Go duration of at least 0.
func duration(to *time.Duration) value {
	return value{"duration", func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return fmt.Errorf("%q: must be a duration of at least 0, such as 10s, 250ms or 0", s)
		}
		*to = d
		return nil
	}}
}

// list is texts with commas between them, as they are; none for blank text.
func list(to *[]string) value {
	return value{"a,b", func(s string) error {
		*to = nil
		if strings.TrimSpace(s) != "" {
			*to = strings.Split(s, ",")
		}
		return nil
	}}
}

// pairs is key:value with commas between them; none for blank text. Neither may hold a colon or a comma.
func pairs(to *map[string]string) value {
	return value{"k:v,k:v", func(s string) error { return storePairs(to, s, ":", strconv.Quote) }}
}

// secretPairs is pairs, which no message shows.
func secretPairs(to *map[string]string) value {
	v := pairs(to)
	v.store = func(s string) error {
		return storePairs(to, s, ":", func(string) string { return "one of the pairs" })
	}
	return v
}

// equations is key=value with commas between them. A value may hold further equals signs.
func equations(to *map[string]string) value {
	return value{"k=v,k=v", func(s string) error { return storePairs(to, s, "=", strconv.Quote) }}
}

// storePairs keeps pairs. show is how a message names one that is wrong.
func storePairs(to *map[string]string, s, between string, show func(item string) string) error {
	*to = nil
	if strings.TrimSpace(s) == "" {
		return nil
	}
	all := make(map[string]string)
	var errs []error
	for item := range strings.SplitSeq(s, ",") {
		key, content, found := strings.Cut(item, between)
		if !found || between == ":" && strings.Contains(content, ":") {
			errs = append(errs, fmt.Errorf("%s: must be a key, one %q and a value, with commas between such pairs", show(item), between))
			continue
		}
		all[key] = content
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	*to = all
	return nil
}
