package logtest

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{}, Third: []string{}})
}

func write(t *testing.T, l *Log, text string) {
	t.Helper()
	if n, err := l.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("Write(%q) = %d, %v", text, n, err)
	}
}

func TestWhatWasWrittenIsReadWholeByLinesAndSinceTheLastTime(t *testing.T) {
	var l Log
	type read struct {
		All, Taken string
		Lines      []string
	}
	for _, step := range []struct {
		write string
		want  read
	}{
		{"", read{"", "", nil}},
		{"a\nb", read{"a\nb", "a\nb", []string{"a"}}},
		{"", read{"a\nb", "", []string{"a"}}},
		{"c\n\n", read{"a\nbc\n\n", "c\n\n", []string{"a", "bc", ""}}},
	} {
		write(t, &l, step.write)
		if diff := cmp.Diff(step.want, read{l.String(), l.Take(), l.Lines()}); diff != "" {
			t.Errorf("after %q (-want +got):\n%s", step.write, diff)
		}
	}
}

func TestAwaitFindsLinesInTheirOrderAndWaitsForWholeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Log
		write(t, &l, "x1\ny\nx2\n")
		got := make([]string, 3)
		go func() {
			next := 0
			for i := range got {
				got[i], next = l.Await(t, next, Has("x"))
			}
		}()
		synctest.Wait()
		if want := []string{"x1", "x2", ""}; !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		write(t, &l, "x3 and")
		synctest.Wait()
		if got[2] != "" {
			t.Errorf("got %q, which is no whole line", got[2])
		}
		write(t, &l, " more\n")
		synctest.Wait()
		if want := "x3 and more"; got[2] != want {
			t.Errorf("got %q, want %q", got[2], want)
		}
	})
}

func TestManyWriteAtOnce(t *testing.T) {
	var l Log
	logger := slog.New(slog.NewTextHandler(&l, nil))
	const writers, each = 8, 20
	var running sync.WaitGroup
	for i := range writers {
		running.Go(func() {
			for n := range each {
				logger.Info("written", slog.String("by", fmt.Sprintf("%d.%d", i, n)))
			}
		})
	}
	for i := range writers {
		for n := range each {
			l.Await(t, 0, func(line string) bool { return strings.HasSuffix(line, fmt.Sprintf(" by=%d.%d", i, n)) })
		}
	}
	running.Wait()
	if got := len(l.Lines()); got != writers*each {
		t.Errorf("got %d lines, want %d", got, writers*each)
	}
}
