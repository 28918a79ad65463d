package snapshots

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// returns runs the start of a process of a fleet, and then saves. returns has the records that
// the process got, and its log.
func returns(t *testing.T, dir string, f files) (got []string, log string) {
	t.Helper()
	k, lines, end := inFleet(t, dir, f, func(o *Options) {
		o.Return = func(record []byte) error {
			if got = append(got, string(record)); string(record) == "bad" {
				return errors.New("not a record")
			}
			return nil
		}
	})
	defer end()
	_ = k.Save(t.Context()) // goes on without its directory
	return got, lines.String()
}

// leave runs a process that leaves records.
func leave(t *testing.T, records ...string) (dir string) {
	t.Helper()
	dir = before(t, 100)
	p := start(t, dir, system{})
	var left [][]byte
	for _, r := range records {
		left = append(left, []byte(r))
	}
	if err := p.Leave(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	p.Close()
	return dir
}

func TestWhatAProcessLeavesIsReturnedOnce(t *testing.T) {
	dir := leave(t, "one", "bad", "two")
	got, log := returns(t, dir, system{})
	if strings.Join(got, " ") != "one bad two" || strings.Count(log, "hits of the last process are lost, as they cannot be read") != 1 {
		t.Errorf("the next process gets %q\n%s", got, log)
	}
	if got, log := returns(t, dir, system{}); len(got) > 0 {
		t.Errorf("the process after it gets %q, too\n%s", got, log)
	}
}

// Wherever a start crashes or fails, a record is never returned twice. If nothing crashes it is
// returned, at the latest when the directory can be written again.
func TestAFaultNeverReturnsARecordTwice(t *testing.T) {
	for _, crash := range []bool{false, true} {
		for at := 0; ; at++ {
			dir := leave(t, "one")
			f := &faulty{at: at, crash: crash, failure: errors.New("no space")}
			got, log := returns(t, dir, f)
			f.lose(rand.New(rand.NewPCG(1, uint64(at))))
			again, _ := returns(t, dir, system{})
			if n := len(got) + len(again); n > 1 || n == 0 && !crash {
				t.Fatalf("crash %v at operation %d: one process gets %q, the next one %q\n%s", crash, at, got, again, log)
			}
			if f.done <= at {
				if at < 7 {
					t.Fatalf("only %d operations", f.done)
				}
				break
			}
		}
	}
}
