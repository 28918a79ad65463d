package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/testing/logtest"
)

// The command records the requests that a running sidecar answers, from the line "recording" on.
func TestRecordWatchesASidecar(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, rulesOf("2")), "--http-json=on", "--http-json-allow=refund")
	dir := filepath.Join(t.TempDir(), "record")
	out, notes := new(logtest.Log), new(logtest.Log)
	ended := make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{"record", "--server", r.address["admin tcp"], "--hash-values=other", "--count=5", dir}, nil, out, notes)
	}()
	notes.Await(t, 0, logtest.Has("recording in "+dir))
	for range 3 {
		r.post(t, "/json", `{"domain": "test", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}, {"entries": [{"key": "other", "value": "x"}], "hitsAddend": "5"}]}`)
	}
	r.post(t, "/json", `{"domain": "test", "descriptors": [{"entries": [{"key": "user", "value": "b"}], "hitsAddend": "0"}]}`)
	r.post(t, "/json", `{"domain": "test", "descriptors": [{"entries": [{"key": "user", "value": "b"}], "hitsAddend": "2", "isNegativeHits": true}]}`)
	if err := <-ended; err != nil {
		t.Fatalf("record: %v\n%s", err, notes)
	}
	if got := out.String(); got != "5 requests recorded; 0 left out, 0 lost, 0 failed\n" {
		t.Errorf("printed %q\n%s", got, notes)
	}
	traffic, err := records.Open(t.Context(), []string{dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer traffic.Close()
	var lines strings.Builder
	for record, err := range traffic.All() {
		if err != nil {
			t.Fatal(err)
		}
		record.At = 0
		lines.Write(records.Append(nil, record))
	}
	text := lines.String()
	for want, times := range map[string]int{
		`"over_limit":true`: 1, `"value":"a"}],"hits":1}`: 3, `],"hits":5}`: 3, `"value":"b"}],"hits":0}`: 1, `"value":"b"}],"hits":2,"refund":true}`: 1, `"value":"x"`: 0,
	} {
		if got := strings.Count(text, want); got != times {
			t.Errorf("%s: %d times, want %d, in\n%s", want, got, times, text)
		}
	}
}

func TestRecordRefusesNonsenseBeforeItMakesADirectory(t *testing.T) {
	for args, want := range map[string]string{
		"--max-per-second=0":     "--max-per-second: 0: must be from 1 to 100000",
		"--for=-1s":              "--for: -1s: must not be negative",
		"--hash-salt-file=/x":    "--hash-salt-file: there is nothing to hash: needs --hash-values",
		"--server=127.0.0.1:1":   "Unavailable",
		"--token-file=/no/token": "--token-file",
	} {
		dir := filepath.Join(t.TempDir(), "record")
		err := run(t.Context(), []string{"record", args, dir}, nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the directory is there", args)
		}
	}
}
