package parts

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// A Ratelimit is a running `ratelimit` that said that it is ready. An address is empty when that
// listener is off.
type Ratelimit struct {
	*Process
	GRPC    string // host:port of Envoy's rate limit service
	HTTP    string // host:port of /json and /healthcheck
	Debug   string // host:port of /rlconfig and /stats
	Metrics string // host:port of Prometheus's page
}

// StartRatelimit runs the program at binary and waits until it is ready. environ holds variables as
// NAME=value. The defaults are ports of 127.0.0.1 that the system chooses, no StatsD, and a log of
// JSON lines. Of two values of a variable the later counts. The program gets WEIR_GRPC_SERVER of
// this process, so that all tests can run over either server, and no other variable.
func StartRatelimit(ctx context.Context, binary string, environ ...string) (*Ratelimit, error) {
	if server := os.Getenv("WEIR_GRPC_SERVER"); server != "" {
		environ = append([]string{"WEIR_GRPC_SERVER=" + server}, environ...)
	}
	process, err := start("ratelimit", slices.Concat([]string{
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"PROMETHEUS_ADDR=127.0.0.1:0", "WEIR_ADMIN_ADDRESS=127.0.0.1:0", "USE_STATSD=false", "LOG_LEVEL=info", "LOG_FORMAT=json",
	}, environ), binary)
	if err != nil {
		return nil, err
	}
	r := &Ratelimit{Process: process}
	_, _, err = process.Await(ctx, 0, func(line string) bool {
		entry := parseRatelimitLog(line)
		if entry.Message == "listening" {
			r.listening(entry)
		}
		return entry.Message == "ready"
	})
	if err != nil {
		process.Kill()
		return nil, err
	}
	return r, nil
}

// listening keeps the address of one "listening" line.
func (r *Ratelimit) listening(entry LogEntry) {
	switch entry.Server {
	case "grpc":
		r.GRPC = entry.Address
	case "http":
		r.HTTP = entry.Address
	case "debug":
		r.Debug = entry.Address
	case "metrics":
		r.Metrics = entry.Address
	}
}

// AwaitMessage waits for a log line with that message, from the line with the number from on (see
// Process.Mark).
func (r *Ratelimit) AwaitMessage(ctx context.Context, from int, message string) (string, error) {
	line, _, err := r.Await(ctx, from, func(line string) bool { return parseRatelimitLog(line).Message == message })
	if err != nil {
		return "", fmt.Errorf("no %q: %w", message, err)
	}
	return line, nil
}

// parseRatelimitLog is ParseLog for a line of `ratelimit`, where the message has the original's
// name.
func parseRatelimitLog(line string) LogEntry {
	var entry struct {
		LogEntry

		Message string `json:"@message"`
	}
	if err := json.Unmarshal([]byte(line), &entry); err != nil {
		return LogEntry{}
	}
	entry.LogEntry.Message = entry.Message
	return entry.LogEntry
}
