// Package logtest keeps the log of a test, so that the test can read log lines and wait for them.
package logtest

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// timeout is how long Await waits for a line that takes milliseconds on an idle machine.
const timeout = 2 * time.Minute

// Log keeps all bytes that a writer, such as a handler of slog, writes. The zero value is empty. A
// Log is safe for concurrent use.
type Log struct {
	mu    sync.Mutex // guards the rest
	text  bytes.Buffer
	taken int           // bytes that Take has returned
	more  chan struct{} // closed when text grows; nil while nobody waits
}

// Write implements [io.Writer].
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return l.text.Write(p)
}

// String returns the whole log so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Take returns the lines since the last Take.
func (l *Log) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := string(l.text.Bytes()[l.taken:])
	l.taken = l.text.Len()
	return text
}

// Lines returns the complete lines so far, without their ends.
func (l *Log) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.linesLocked()
}

func (l *Log) linesLocked() []string {
	var lines []string
	for line := range strings.Lines(l.text.String()) {
		if whole, found := strings.CutSuffix(line, "\n"); found {
			lines = append(lines, whole)
		}
	}
	return lines
}

// Has returns a function that accepts lines with the given part.
func Has(part string) func(line string) bool {
	return func(line string) bool { return strings.Contains(line, part) }
}

// Await returns the first line, from the line with the number from on, that match accepts, and the
// number of the line after it. Await waits for a line, and ends the test when no line comes in
// time.
func (l *Log) Await(tb testing.TB, from int, match func(line string) bool) (line string, next int) {
	tb.Helper()
	deadline := time.After(timeout)
	for {
		l.mu.Lock()
		lines := l.linesLocked()
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more := l.more
		l.mu.Unlock()
		for ; from < len(lines); from++ {
			if match(lines[from]) {
				return lines[from], from + 1
			}
		}
		select {
		case <-more:
		case <-deadline:
			tb.Fatalf("the awaited line is not in the log within %v:\n%s", timeout, l)
		}
	}
}
