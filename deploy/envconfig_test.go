package deploy

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kelseyhightower/envconfig"

	"github.com/weirproxy/weir/test/parts"
)

var update = flag.Bool("update", false, "write the answers of envconfig anew")

// envconfigAnswers holds, by type and text, the value that envconfig reads from the text, or
// "refused". The test of cmd/ratelimit compares Weir's values with this file, so that Weir itself
// does not need envconfig.
const envconfigAnswers = "../cmd/ratelimit/testdata/envconfig.json"

// The original reads its environment with envconfig. This test proves that the recorded answers are
// envconfig's.
func TestTheRecordedAnswersAreThoseOfEnvconfig(t *testing.T) {
	content := parts.Read(t, envconfigAnswers)
	var recorded map[string]map[string]string
	if err := json.Unmarshal([]byte(content), &recorded); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]map[string]string)
	for kind, texts := range recorded {
		got[kind] = make(map[string]string)
		for text := range texts {
			got[kind][text] = answerOfEnvconfig(t, kind, text)
		}
	}
	if *update {
		content, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(envconfigAnswers, append(content, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(got, recorded); diff != "" {
		t.Errorf("(-envconfig +recorded):\n%s", diff)
	}
}

// answerOfEnvconfig returns the value that envconfig reads from a text for a field of that type.
func answerOfEnvconfig(t *testing.T, kind, text string) string {
	t.Helper()
	t.Setenv("WEIR_VALUE", text)
	var err error
	var value any
	switch kind {
	case "number":
		value, err = readByEnvconfig[int]()
	case "boolean":
		value, err = readByEnvconfig[bool]()
	case "duration":
		value, err = readByEnvconfig[time.Duration]()
	case "fraction":
		value, err = readByEnvconfig[float32]()
	case "list":
		value, err = readByEnvconfig[[]string]()
	case "pairs":
		value, err = readByEnvconfig[map[string]string]()
	case "text":
		value, err = readByEnvconfig[string]()
	default:
		t.Fatalf("%s: no such type", kind)
	}
	if err != nil {
		return "refused"
	}
	switch kind {
	case "list", "pairs", "text":
		return fmt.Sprintf("%q", value)
	default:
		return fmt.Sprint(value)
	}
}

// readByEnvconfig reads the variable WEIR_VALUE.
func readByEnvconfig[T any]() (T, error) {
	var settings struct {
		Value T `envconfig:"WEIR_VALUE"`
	}
	err := envconfig.Process("", &settings)
	return settings.Value, err
}
