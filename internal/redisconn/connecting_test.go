package redisconn

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/logtest"
)

// soon returns a context with time enough for processes on a busy machine.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// await calls the condition until the condition returns nil.
func await(t *testing.T, what string, condition func() error) {
	t.Helper()
	ctx := soon(t)
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// logLines keeps the log, one line for each record.
type logLines struct {
	logtest.Log
	ignored *regexp.Regexp // has skips lines that match; nil skips no line
}

// has returns an error unless each line contains one of the parts, in their order.
func (l *logLines) has(parts ...string) error {
	lines := slices.DeleteFunc(l.Lines(), func(line string) bool {
		return strings.Contains(line, "anew") || l.ignored != nil && l.ignored.MatchString(line) // "anew" is in a line of each attempt
	})
	if len(lines) == len(parts) {
		for i, part := range parts {
			if !strings.Contains(lines[i], part) {
				return fmt.Errorf("line %d is not %q:\n%s", i+1, part, strings.Join(lines, "\n"))
			}
		}
		return nil
	}
	return fmt.Errorf("not %d lines:\n%s", len(parts), strings.Join(lines, "\n"))
}

// connecting returns a Conn that the test closes.
func connecting(t *testing.T, o TargetOptions) (*Conn, *logLines) {
	t.Helper()
	target, err := ParseTarget(o)
	if err != nil {
		t.Fatal(err)
	}
	lines := &logLines{}
	c := Dial(target, slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { c.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Error("close does not end")
		}
		if t.Failed() {
			t.Logf("log:\n%s", strings.Join(lines.Lines(), "\n"))
		}
	})
	return c, lines
}

// connectedTo returns a Conn that has connected.
func connectedTo(t *testing.T, o TargetOptions) (*Conn, *logLines) {
	t.Helper()
	c, lines := connecting(t, o)
	if err := c.Await(soon(t)); err != nil {
		t.Fatal(err)
	}
	return c, lines
}

// command sends a command, and reports its result, as redisstore does.
func (c *Conn) command(timeout time.Duration, words ...string) (string, error) {
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	command := client.B().Arbitrary(words[0])
	if len(words) > 1 {
		command = command.Keys(words[1]).Args(words[2:]...)
	}
	message, err := client.Do(ctx, command.Build()).ToMessage()
	if err := c.Report(err); err != nil {
		return "", err
	}
	text, err := message.ToString()
	if err != nil {
		return message.String(), nil
	}
	return text, nil
}

// works returns the error of a command that writes, with 10 ms.
func (c *Conn) works() error {
	_, err := c.command(10*time.Millisecond, "INCR", "{connection}")
	return err
}

// A pace counts commands, and the late ones among them. The zero value has none.
type pace struct{ commands, late int }

// works returns the error of a command that writes. A command is late half a second after its start, long after its deadline.
func (p *pace) works(c *Conn) error {
	begun := time.Now()
	err := c.works()
	p.commands++
	if time.Since(begun) > time.Second/2 {
		p.late++
	}
	return err
}

// check fails the test when most commands were late. A busy machine delays a command now and then; a wait for a dial delays all.
func (p *pace) check(t *testing.T) {
	t.Helper()
	if 2*p.late > p.commands {
		t.Errorf("%d of %d commands ended more than 500 ms after their start", p.late, p.commands)
	}
}

// patiently returns the error of a command that writes, with 5 s for a busy machine.
func (c *Conn) patiently() error {
	_, err := c.command(5*time.Second, "INCR", "{connection}")
	return err
}
