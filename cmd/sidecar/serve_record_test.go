package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weirproxy/weir/internal/lab/records"
)

// By its end a sidecar has recorded all requests, with the answers. Values of chosen keys are
// hashes.
func TestServeRecordsRequests(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "record")
	r := start(t, "--rules", rulesFile(t, rulesOf("2")), "--record="+dir, "--hash-values=key")
	for range 3 {
		r.post(t, "/json", `{"domain": "test", "descriptors": [{"entries": [{"key": "key", "value": "secret"}]}, {"entries": [{"key": "other", "value": "x"}], "hitsAddend": "5"}]}`)
	}
	raise(t, syscall.SIGTERM)
	r.awaitEnd(t)
	traffic, err := records.Open(t.Context(), []string{dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer traffic.Close()
	var answers []records.Answer
	values := make(map[string]int)
	for record, err := range traffic.All() {
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, record.Answer)
		d := record.Request.Descriptors
		if record.Request.Domain != "test" || len(d) != 2 || d[1].Hits != 5 || d[1].Entries[0].Value != "x" || len(d[0].Entries[0].Value) != 16 {
			t.Errorf("recorded %+v", record.Request)
		}
		values[strings.Clone(d[0].Entries[0].Value)]++
	}
	if len(answers) != 3 || len(values) != 1 {
		t.Errorf("recorded the answers %v and the values %v; want 3 of one value", answers, values)
	}
}

func TestMistakesInTheSettingsOfARecord(t *testing.T) {
	rules := rulesFile(t, rulesOf("2"))
	for args, want := range map[string]string{
		"--hash-values=key":                             "hash-values: nothing is recorded: needs record",
		"--record=r --hash-salt-file=salt":              "hash-salt-file: there is nothing to hash: needs hash-values",
		"--record=r --record-max-bytes=1000":            "must be a whole number of at least 8388608",
		"--record=r --hash-values=key --hash-salt-file": "record: salt: " + rules + ".salt: is too short",
	} {
		t.Run(args, func(t *testing.T) {
			all := append([]string{"serve", "--rules", rules, "--grpc-address=127.0.0.1:0", "--http-address=", "--admin-address="}, strings.Fields(args)...)
			if strings.HasSuffix(args, "-file") {
				salt := rules + ".salt"
				if err := os.WriteFile(salt, []byte("short\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				all[len(all)-1] += "=" + salt
				all[6] = "--record=" + t.TempDir()
			}
			err := run(t.Context(), all, strings.NewReader(""), io.Discard, io.Discard)
			if err == nil || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}
