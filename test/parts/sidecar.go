package parts

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// A Sidecar is a running `sidecar serve` that said that it is ready. An address is empty when that
// listener is off.
type Sidecar struct {
	*Process
	GRPC   string // host:port of Envoy's rate limit service
	Socket string // path of the Unix socket with the same service
	HTTP   string // host:port of health and metrics
	Admin  string // host:port of the admin service
}

// StartSidecar runs `binary serve args…` and waits until it is ready. Where args ask for port 0 the
// Sidecar has the port it got. The log is JSON, one object per line.
func StartSidecar(ctx context.Context, binary string, args ...string) (*Sidecar, error) {
	process, err := Start("sidecar", binary, append([]string{"serve", "--log-format=json"}, args...)...)
	if err != nil {
		return nil, err
	}
	s := &Sidecar{Process: process}
	return s, process.awaitReady(ctx, s.listening)
}

// listening keeps the address of one "listening" line.
func (s *Sidecar) listening(entry LogEntry) {
	switch {
	case entry.Server == "grpc" && entry.Network == "unix":
		s.Socket = entry.Address
	case entry.Server == "grpc":
		s.GRPC = entry.Address
	case entry.Server == "http":
		s.HTTP = entry.Address
	case entry.Server == "admin":
		s.Admin = entry.Address
	}
}

// A LogEntry holds the parts of a log line that callers use.
type LogEntry struct {
	Level   string `json:"level"`
	Message string `json:"msg"`
	Server  string `json:"server"`  // of "listening": grpc, http or admin
	Network string `json:"network"` // of "listening": tcp or unix
	Address string `json:"address"` // of "listening"
}

// ParseLog reads one line of the log of `sidecar` or `ratelimit`; a line that is not JSON gives the
// zero LogEntry.
func ParseLog(line string) LogEntry {
	var entry struct {
		LogEntry

		Original string `json:"@message"` // the name in the log of `ratelimit`
	}
	if err := json.Unmarshal([]byte(line), &entry); err != nil {
		return LogEntry{}
	}
	entry.Message = cmp.Or(entry.Message, entry.Original)
	return entry.LogEntry
}

// awaitReady waits until the log says "ready", and gives each line "listening" before to listening.
// After an error the program has ended.
func (p *Process) awaitReady(ctx context.Context, listening func(LogEntry)) error {
	_, _, err := p.Await(ctx, 0, func(line string) bool {
		entry := ParseLog(line)
		if entry.Message == "listening" {
			listening(entry)
		}
		return entry.Message == "ready"
	})
	if err != nil {
		p.Kill()
	}
	return err
}

// AwaitMessage waits for a log line with that message, from the line with the number from on (see
// Process.Mark).
func (p *Process) AwaitMessage(ctx context.Context, from int, message string) (string, error) {
	line, _, err := p.Await(ctx, from, func(line string) bool { return ParseLog(line).Message == message })
	if err != nil {
		return "", fmt.Errorf("no %q: %w", message, err)
	}
	return line, nil
}

// AwaitStore waits until the counts in Redis rule. A first connection may fail on a busy machine,
// and the log then says "is back".
func (s *Sidecar) AwaitStore(ctx context.Context) error {
	_, _, err := s.Await(ctx, 0, func(line string) bool { return strings.Contains(ParseLog(line).Message, "its counts rule") })
	if err != nil {
		return fmt.Errorf("the counts in Redis do not rule: %w", err)
	}
	return nil
}
