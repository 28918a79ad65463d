package descriptors

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// slowMatch is overlayEntry.matches by regular expressions.
func slowMatch(domain, name string, path []string, deeper bool, unit Unit, r *Rule, itsName string, itsUnit Unit) bool {
	is := func(pattern, text string) bool {
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		return regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString(text)
	}
	if domain != "" && !is(domain, r.Domain) || name != "" && !is(name, itsName) || unit != UnitUnknown && unit != itsUnit {
		return false
	}
	if len(path) > len(r.Levels) || len(path) < len(r.Levels) && !deeper {
		return false
	}
	for i, p := range path {
		if !is(p, r.Levels[i].Key) {
			return false
		}
	}
	return true
}

func TestTheFirstEntryThatMatchesCounts(t *testing.T) {
	const rounds = 30_000
	random := rand.New(rand.NewPCG(1, 2))
	text := func(letters string, most int) string {
		b := make([]byte, random.IntN(most+1))
		for i := range b {
			b[i] = letters[random.IntN(len(letters))]
		}
		return string(b)
	}
	found := 0
	for range rounds {
		r := &Rule{Domain: text("a/", 3)}
		for range random.IntN(4) {
			r.Levels = append(r.Levels, Level{Key: text("ab/", 4)})
		}
		itsName, itsUnit := text("ab", 2), Unit(1+random.IntN(2))
		o, want := new(overlays), -1
		for i := range 3 {
			domain, name, unit := text("a/*", 3), text("ab*", 2), Unit(random.IntN(3))
			var path []string
			deeper := random.IntN(2) == 0
			for range random.IntN(4) {
				path = append(path, text("ab/**", 4))
			}
			e := &overlayEntry{line: i, unit: unit, deeper: deeper}
			if domain != "" {
				e.domain = newGlob(domain)
			}
			if name != "" {
				e.name = newGlob(name)
			}
			for _, p := range path {
				e.path = append(e.path, overlayLevel{key: newGlob(p)})
			}
			o.add(e)
			if want < 0 && slowMatch(domain, name, path, deeper, unit, r, itsName, itsUnit) {
				want = i
			}
		}
		got := -1
		if e := o.find(r, itsName, itsUnit); e != nil {
			got = e.line
			found++
		}
		if got != want {
			t.Fatalf("%+v, name %q, unit %v: got entry %d, want %d", r, itsName, itsUnit, got, want)
		}
	}
	if found < rounds/50 {
		t.Errorf("only %d of %d rules met an entry", found, rounds)
	}
}

// FuzzOverlay loads any overlay above the document of a gateway. A mistake is of one of the two.
func FuzzOverlay(f *testing.F) {
	for _, text := range []string{
		"overlay:\n- for: {unit: hour}\n  set: {algorithm: token_bucket, burst: 5, warn_at: [80%]}\n",
		"overlay:\n- for: {path: [\"*\", {key: \"rule-*\", value: x}, \"**\"]}\n  set: {hold: {begin: a, end: b, at_most: 1d}}\n",
		"overlay:\n- for: {domain: &a \"*\", name: *a}\n  set: &b {align: {to: calendar, day: 15}}\n- for: {name: a}\n  set: *b\n",
		"overlay: 5\n", "overlay:\n- for: {unit: day}\n  set: {<<: {group: a}, sharing: exact}\n", "{\"overlay\": []}",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules, _, err := withOverlay(text, gateway, Options{})
		if (rules == nil) != (err != nil) {
			t.Fatalf("got %v and %v, want one of them", rules, err)
		}
		if mistakes, ok := errors.AsType[Errors](err); err != nil && !ok {
			t.Fatalf("got an error of type %T", err)
		} else {
			for _, m := range mistakes {
				if m.File != "xds:http" && m.File != "overlay.yaml" {
					t.Errorf("a mistake in %q", m.File)
				}
			}
		}
		if err != nil {
			return
		}
		for i, l := range limitsOf(rules) {
			if want := []uint32{5, 7}[i]; l.Requests != want {
				t.Errorf("limit %d: got %d requests, want %d, as no overlay changes numbers", i, l.Requests, want)
			}
		}
	})
}
