package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// entriesHelp says how descriptors are written on the command line.
const entriesHelp = `A descriptor is written key=value[,key=value…], from the most general entry to the most specific. A backslash makes a comma,
an equal sign or a backslash a plain character: path=/a\,b. In a value an equal sign is one anyway.`

// parseEntries reads a descriptor: see entriesHelp.
func parseEntries(text string) ([]descriptors.Entry, error) { return parseParts(text, false) }

// parseParts is parseEntries, and takes keys without a value too if bare is true.
func parseParts(text string, bare bool) ([]descriptors.Entry, error) {
	var (
		entries []descriptors.Entry
		entry   descriptors.Entry
		part    strings.Builder
		inValue bool
	)
	end := func() error {
		if !inValue && !bare {
			return fmt.Errorf("%q: must be key=value", part.String())
		}
		if !inValue {
			entry.Key = part.String()
			part.Reset()
		}
		if entry.Key == "" {
			return errors.New("the key of an entry must not be empty")
		}
		entry.Value = part.String()
		entries = append(entries, entry)
		entry, inValue = descriptors.Entry{}, false
		part.Reset()
		return nil
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			if i++; i == len(text) || !strings.ContainsRune(`,=\`, rune(text[i])) {
				return nil, fmt.Errorf("%q: a backslash must stand before a comma, an equal sign or a backslash", text)
			}
			part.WriteByte(text[i])
		case c == ',':
			if err := end(); err != nil {
				return nil, err
			}
		case c == '=' && !inValue:
			entry.Key, inValue = part.String(), true
			part.Reset()
		default:
			part.WriteByte(c)
		}
	}
	if err := end(); err != nil {
		return nil, err
	}
	return entries, nil
}
