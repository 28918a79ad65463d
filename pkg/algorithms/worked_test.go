package algorithms

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the results in testdata/*.txt anew")

// The worked examples of testdata/*.txt, which the documentation quotes. Every line is one of
//
//	# a comment
//	limit ALGORITHM REQUESTS per PERIOD [burst N] [counting rejected]
//	at TIME take HITS | at TIME probe | at TIME refund HITS
//	at TIME give back HITS of TIME
//	at TIME begin HOLDER HITS [at most TIME]
//	at TIME begun HOLDER HITS | at TIME end HOLDER HITS | at TIME cancel HOLDER
//	at TIME limit REQUESTS [per PERIOD [burst N]]
//
// The first line with a limit begins a key never used; concurrency has no period. Hits are given
// back of an earlier charge. A begin holds for an hour at most if the line does not say. A limit at
// a time changes the limit, and the key stays. After each charge comes its decision, indented.
// `go test -run Worked -update` writes the decisions.
func TestWorkedExamples(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no worked examples: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := workOut(string(text))
			if err != nil {
				t.Fatalf("%s:%v", file, err)
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("%s (-file +worked out):\n%s", file, diff)
			}
		})
	}
}

// workOut returns the text of a file with the results written anew. Errors start with the number of
// the line.
func workOut(text string) (string, error) {
	var out strings.Builder
	var e example
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(line, " ") {
			continue // an old result
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		result, err := e.do(strings.Fields(line))
		if err != nil {
			return "", fmt.Errorf("%d: %q: %w", i+1, line, err)
		}
		if result != "" {
			out.WriteString("    " + result + "\n")
		}
	}
	return out.String(), nil
}

// example is the key that a worked example is about.
type example struct {
	key           *heldKey
	reference     *heldReference
	countRejected bool
}

// do carries out one line and returns the decision as text.
func (e *example) do(words []string) (string, error) {
	if words[0] == "limit" && len(words) > 1 {
		a, err := ParseAlgorithm(words[1])
		if err != nil {
			return "", err
		}
		l, rest, err := parseLimit(a, words[2:])
		if err != nil {
			return "", err
		}
		e.countRejected = strings.Join(rest, " ") == "counting rejected"
		e.key, e.reference = newHeldKey(l), newHeldReference(l)
		if len(rest) > 0 && !e.countRejected {
			return "", fmt.Errorf("what is %q?", rest)
		}
		return "", nil
	}
	if words[0] != "at" || len(words) < 3 || e.key == nil {
		return "", errors.New("must be a limit, or something at a time after one")
	}
	at, err := time.ParseDuration(words[1])
	if err != nil {
		return "", err
	}
	now := Instant(at)
	var hits int64
	switch words[2] {
	case "limit":
		l, _, err := parseLimit(e.key.limit.Algorithm, words[3:])
		if err != nil {
			return "", err
		}
		e.key.change(l, now)
		e.reference.change(l, now)
		return "", nil
	case "probe":
	case "give":
		return "", e.giveBack(words, now)
	case "begin", "begun", "end", "cancel":
		return e.hold(words, now)
	case "take", "refund":
		if hits, err = strconv.ParseInt(words[len(words)-1], 10, 64); err != nil {
			return "", err
		}
		if words[2] == "refund" {
			hits = -hits
		}
	default:
		return "", errors.New("must be take, probe, refund, give back, begin, begun, end, cancel or limit")
	}
	d, want := e.key.take(now, hits, e.countRejected), e.reference.key.take(now, hits, e.countRejected)
	if d != want {
		return "", fmt.Errorf("decision is %+v, by the reference %+v", d, want)
	}
	return describe(d), nil
}

// giveBack reads "at TIME give back HITS of TIME".
func (e *example) giveBack(words []string, now Instant) error {
	if len(words) != 7 || words[3] != "back" || words[5] != "of" {
		return errors.New("must be give back HITS of TIME")
	}
	hits, err := strconv.ParseUint(words[4], 10, 32)
	if err != nil {
		return err
	}
	charged, err := time.ParseDuration(words[6])
	if err != nil {
		return err
	}
	e.key.giveBack(Instant(charged), now, uint32(hits))
	e.reference.key.giveBack(Instant(charged), now, uint32(hits))
	return nil
}

// parseLimit reads "REQUESTS per PERIOD [burst N]" and returns the rest of the words.
func parseLimit(a Algorithm, words []string) (Limit, []string, error) {
	if a == Concurrency && len(words) == 1 {
		words = []string{words[0], "per", "0s"}
	}
	if len(words) < 3 || words[1] != "per" {
		return Limit{}, nil, errors.New("must have REQUESTS per PERIOD")
	}
	requests, err := strconv.ParseUint(words[0], 10, 32)
	if err != nil {
		return Limit{}, nil, err
	}
	l := Limit{Algorithm: a, Requests: uint32(requests)}
	if l.Period, err = time.ParseDuration(words[2]); err != nil {
		return Limit{}, nil, err
	}
	rest := words[3:]
	if len(rest) > 1 && rest[0] == "burst" {
		burst, err := strconv.ParseUint(rest[1], 10, 32)
		if err != nil {
			return Limit{}, nil, err
		}
		l.Burst, rest = uint32(burst), rest[2:]
	}
	return l, rest, l.Validate()
}

// describe returns a decision in the words of the examples.
func describe(d Decision) string {
	words := fmt.Sprintf("%d remaining, reset after %v", d.Remaining, d.ResetAfter)
	if d.Allowed {
		return "allowed, " + words
	}
	return fmt.Sprintf("denied, retry after %v, %s", d.RetryAfter, words)
}

func TestAWorkedExampleThatCannotBeReadSaysWhere(t *testing.T) {
	for _, line := range []string{
		"limit leaky_bucket 1 per 1s", "limit fixed_window 1 per 0s", "limit fixed_window 1 per 1s counting sheep", "at 1s take 1", "hello",
	} {
		if got, err := workOut("# one\n" + line + "\n"); err == nil || !strings.HasPrefix(err.Error(), "2: ") {
			t.Errorf("%q: got %q, %v; want an error that starts with its line", line, got, err)
		}
	}
}

// hold carries out "at TIME begin HOLDER HITS [at most TIME]" or another phase of a holder.
func (e *example) hold(words []string, now Instant) (string, error) {
	phases := map[string]HoldPhase{"begin": HoldBegin, "begun": HoldBegun, "end": HoldEnd, "cancel": HoldCancel, "pair": HoldPair}
	m := message{phase: phases[words[2]], atMost: time.Hour, countRejected: e.countRejected}
	var err error
	switch n := len(words); {
	case n == 4 && m.phase == HoldCancel:
	case n == 8 && words[5] == "at" && words[6] == "most":
		m.atMost, err = time.ParseDuration(words[7])
	case n != 5:
		err = errors.New("must be HOLDER HITS [at most TIME]")
	}
	if err != nil {
		return "", err
	}
	if m.holder = words[3]; m.phase != HoldCancel {
		if m.hits, err = strconv.ParseInt(words[4], 10, 64); err != nil {
			return "", err
		}
	}
	d, want := e.key.do(m, now), e.reference.do(m, now)
	if d != want {
		return "", fmt.Errorf("decision is %+v, by the reference %+v", d, want)
	}
	return describe(d), nil
}
