package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/printable"
)

// Forms of output.
const (
	outputText = "text"
	outputJSON = "json"
)

// addOutput adds the flag of the form of output to a command without a PreRunE, which then refuses
// other forms than text and JSON.
func addOutput(cmd *cobra.Command, to *string, about string) {
	cmd.Flags().StringVar(to, "output", outputText, about)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if err := outputFormat(*to); err != nil {
			return usage("%w", err)
		}
		return nil
	}
}

// outputFormat accepts a form of output.
func outputFormat(name string) error {
	if name != outputText && name != outputJSON {
		return fmt.Errorf("--output: %q: must be %s or %s", name, outputText, outputJSON)
	}
	return nil
}

// writeJSON writes a value as indented JSON that a terminal can show without harm.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(printable.JSON(b.Bytes()))
	return err
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

// isTerminal reports whether w is a terminal that can draw again.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}
