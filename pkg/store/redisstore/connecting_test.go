package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/logtest"
)

// soon is a context for what real processes do on a busy machine.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// await calls a condition until it returns nil.
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

// logLines keeps what is logged, one line for each record.
type logLines struct{ logtest.Log }

// has returns an error unless the lines are, in their order, those that contain the parts.
func (l *logLines) has(parts ...string) error {
	lines := slices.DeleteFunc(l.Lines(), func(line string) bool { return strings.Contains(line, "anew") }) // of each attempt
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

// connecting returns a connection that is closed with the test.
func connecting(t *testing.T, o TargetOptions) (*connection, *logLines) {
	t.Helper()
	target, err := ParseTarget(o)
	if err != nil {
		t.Fatal(err)
	}
	lines := &logLines{}
	c := dial(target, slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { c.close(); close(closed) }()
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

// connectedTo is connecting and waits until it is.
func connectedTo(t *testing.T, o TargetOptions) (*connection, *logLines) {
	t.Helper()
	c, lines := connecting(t, o)
	if err := c.first(soon(t)); err != nil {
		t.Fatal(err)
	}
	return c, lines
}

// command sends one as the store does and reports its errors as that does.
func (c *connection) command(timeout time.Duration, words ...string) (string, error) {
	client, err := c.client()
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
	if err != nil {
		c.failed(err)
		return "", lost(err)
	}
	c.recovered()
	text, err := message.ToString()
	if err != nil {
		return message.String(), nil
	}
	return text, nil
}

// works returns why a command that writes is not answered.
func (c *connection) works() error {
	_, err := c.command(10*time.Millisecond, "INCR", "{connection}")
	return err
}

// patiently is works with all the time that a busy machine may need.
func (c *connection) patiently() error {
	_, err := c.command(5*time.Second, "INCR", "{connection}")
	return err
}
