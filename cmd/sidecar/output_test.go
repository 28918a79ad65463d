package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// JSON itself leaves characters above 0x7e as they are, and a terminal obeys some of them.
func TestJSONHasNoCharactersThatATerminalObeys(t *testing.T) {
	const key = "\x1b[2J \x7f \u009b2J a\u202eb ü \U000e0001"
	var out bytes.Buffer
	if err := writeJSON(&out, map[string]string{"key": key}); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["key"] != key {
		t.Errorf("got %q, %v back, want %q", back["key"], err, key)
	}
	if strings.ContainsAny(out.String(), "\x1b\x7f\u009b\u202e\U000e0001") || !strings.Contains(out.String(), "ü") {
		t.Errorf("got %q", out.String())
	}
}

// The device null is a character device too, and top would draw to it for ever.
func TestTheNullDeviceIsNoTerminal(t *testing.T) {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	if t.Setenv("TERM", "xterm"); isTerminal(f) {
		t.Error("it is taken for a terminal")
	}
}
