package main

import (
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
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

// writeAnswer writes a message of the admin service as JSON, or its text.
func writeAnswer(w io.Writer, format string, answer proto.Message, text string) error {
	if format != outputJSON {
		_, err := io.WriteString(w, text)
		return err
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(answer)
	if err != nil {
		return err
	}
	return writeJSON(w, json.RawMessage(data)) // protojson varies the space between tokens, writeJSON does not
}

// count words a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
