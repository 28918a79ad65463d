package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Forms of output.
const (
	outputText = "text"
	outputJSON = "json"
)

// outputFormat accepts a form of output.
func outputFormat(name string) error {
	if name != outputText && name != outputJSON {
		return fmt.Errorf("--output: %q: must be %s or %s", name, outputText, outputJSON)
	}
	return nil
}

// writeJSON writes a value as indented JSON.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// describe says what a limit is: "10 per 1s, token_bucket, burst 1000".
func describe(l algorithms.Limit, countRejected bool, onStoreError string) string {
	text := fmt.Sprintf("%d per %s, %s", l.Requests, span(l.Period), l.Algorithm)
	if l.Algorithm == algorithms.TokenBucket && l.Capacity() != l.Requests {
		text += fmt.Sprintf(", burst %d", l.Capacity())
	}
	if countRejected {
		text += ", denied hits count too"
	}
	if onStoreError != "" {
		text += ", on store error: " + onStoreError
	}
	return text
}

// place is file:line, or the file where the line is not known.
func place(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// span writes a period without the units that are zero: "1m", "7d".
func span(d time.Duration) string {
	const day = 24 * time.Hour
	if d > 0 && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// count words a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
