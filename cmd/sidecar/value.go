package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// value is how one kind of setting is read, wherever it is written: a flag and the environment give text, a settings file
// may give numbers, booleans and lists too.
type value struct {
	kind  string               // as the help shows it
	store func(raw any) error  // keeps what was written; the error says what is allowed
	items bool                 // several values, separated by commas
	flag  func(s string) error // refuses what the command line cannot mean; nil: anything is looked at later
}

// text is any text that check accepts; nil accepts all.
func text(to *string, kind string, check func(string) error) value {
	return value{kind: kind, store: func(raw any) error {
		s, ok := raw.(string)
		if !ok {
			return fmt.Errorf("%v: must be text", raw)
		}
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
	return value{kind: "secret", store: func(raw any) error {
		s, ok := raw.(string)
		if !ok {
			return errors.New("must be text: put it in quotes")
		}
		*to = s
		return nil
	}}
}

// choice is one of several words.
func choice(to *string, of ...string) value {
	return text(to, strings.Join(of, "|"), func(s string) error {
		if !slices.Contains(of, s) {
			return fmt.Errorf("must be %s", wordList(of, "or"))
		}
		return nil
	})
}

// number is how many, from 1 to most.
func number(to *int, most int) value {
	return value{kind: "number", store: func(raw any) error {
		n, ok := whole(raw)
		if !ok || n < 1 || n > most {
			return fmt.Errorf("%v: must be a whole number from 1 to %d", quoted(raw), most)
		}
		*to = n
		return nil
	}}
}

// whole reads a whole number as text and the three formats of settings files give it.
func whole(raw any) (int, bool) {
	switch n := raw.(type) {
	case string:
		i, err := strconv.Atoi(n)
		return i, err == nil
	case int:
		return n, true
	case int64:
		return int(n), true
	case float64: // JSON has no other numbers
		return int(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	}
	return 0, false
}

// boolean is true or false.
func boolean(to *bool) value {
	parse := func(raw any) error {
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
	}
	// Here viper would take what is no boolean for false.
	return value{kind: "bool", store: parse, flag: func(s string) error {
		if _, err := strconv.ParseBool(s); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}}
}

// duration is a Go duration from least to most.
func duration(to *time.Duration, least, most time.Duration) value {
	return value{kind: "duration", store: func(raw any) error {
		s, ok := raw.(string)
		d, err := time.ParseDuration(s)
		if !ok || err != nil || d < least || d > most {
			return fmt.Errorf("%v: must be a duration from %v to %v, such as 1s, 250ms or 1m30s", quoted(raw), least, most)
		}
		*to = d
		return nil
	}}
}

// mode is the permissions of a file: text, in octal. A number of a settings file is refused: it has lost whether it was
// written in octal, so 432 may stand for 0660 as well as for 0432.
func mode(to *fs.FileMode) value {
	return value{kind: "mode", store: func(raw any) error {
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

// list is texts, each of which check accepts, naming it if not; nil accepts all. Empty ones are dropped.
func list(to *[]string, kind string, check func(string) error) value {
	// Each line of the error is about one item.
	return value{kind: kind, items: true, store: func(raw any) error {
		var all []string
		switch v := raw.(type) {
		case string:
			all = strings.Split(v, ",")
		case []string:
			all = v
		case []any:
			for _, item := range v {
				s, ok := item.(string)
				if !ok {
					return fmt.Errorf("%v: must be text", item)
				}
				all = append(all, s)
			}
		default:
			return fmt.Errorf("%v: must be a list of texts", raw)
		}
		var errs []error
		kept := make([]string, 0, len(all))
		for _, s := range all {
			if s = strings.TrimSpace(s); s == "" {
				continue
			}
			if check != nil {
				if err := check(s); err != nil {
					errs = append(errs, err)
				}
			}
			kept = append(kept, s)
		}
		*to = kept
		return errors.Join(errs...)
	}}
}

// urls is a list of URLs, which may be lists of hosts themselves: what has no scheme belongs to the URL before. No message
// shows them, as they may hold passwords.
func urls(to *[]string) value {
	var parts []string
	v := list(&parts, "url", nil)
	read := v.store
	v.store = func(raw any) error {
		if read(raw) != nil {
			return errors.New("must be a URL or a list of URLs")
		}
		all := make([]string, 0, len(parts))
		for _, part := range parts {
			if n := len(all); n > 0 && !strings.Contains(part, "://") {
				all[n-1] += "," + part
				continue
			}
			all = append(all, part)
		}
		*to = all
		return nil
	}
	return v
}

// address accepts host:port with any port from 0, and nothing at all.
func address(s string) error {
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return errors.New(`must be host:port, such as :8081, 127.0.0.1:8081 or [::]:8081, or "" for off`)
	}
	return nil
}

// header accepts the name of an HTTP header.
func header(s string) error {
	if !httpguts.ValidHeaderFieldName(s) {
		return errors.New("must be the name of an HTTP header")
	}
	return nil
}

// quoted quotes a text and leaves other values as they are.
func quoted(raw any) any {
	if s, ok := raw.(string); ok {
		return strconv.Quote(s)
	}
	return raw
}

// wordList joins words for a sentence: "a, b or c".
func wordList(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " " + last + " " + words[len(words)-1]
}
