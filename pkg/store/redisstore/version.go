package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// Errors of a server that will not do, however long one waits. They also wrap ErrUnavailable.
var (
	// ErrVersion says that a server is older than Redis 6.2 or Valkey 7.2.
	ErrVersion = errors.New("redis is too old")

	// ErrTopology says that a server is not what the scheme of the URL says.
	ErrTopology = errors.New("redis is of another topology")
)

// unfitError is one of these errors, with the server it is about.
type unfitError struct {
	text string
	kind error
}

func (e *unfitError) Error() string   { return e.text }
func (e *unfitError) Unwrap() []error { return []error{ErrUnavailable, e.kind} }

// version is how a server calls itself.
type version struct {
	product string // "redis" or "valkey"; "" is unknown
	text    string
}

// String is as people say it.
func (v version) String() string {
	if v.product == "" {
		return "unknown"
	}
	return v.product + " " + v.text
}

// supported reports whether Weir works with it: Redis from 6.2 on, Valkey from 7.2 on.
func (v version) supported() bool {
	major, rest, _ := strings.Cut(v.text, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err := strconv.Atoi(major)
	if err != nil {
		return true // "unstable" or the like: somebody who built it knows
	}
	y, err := strconv.Atoi(minor)
	if err != nil {
		y = 0
	}
	if v.product == "valkey" {
		return x > 7 || x == 7 && y >= 2
	}
	return x > 6 || x == 6 && y >= 2
}

// errNoInfo says that a server answers, but not to INFO.
var errNoInfo = errors.New("INFO is refused")

// inquire asks the server at an address what it is. Servers that speak the protocol and are neither Redis nor Valkey (KeyDB,
// Dragonfly) say which version of Redis they stand for, and are taken at that. One whose ACL forbids INFO is not known to be
// too old; errNoInfo then. Other errors mean that it cannot be used now, or, with ErrVersion or ErrTopology, not at all.
func inquire(ctx context.Context, node rueidis.Client, address string, want topology) (version, error) {
	text, err := node.Do(ctx, node.B().Info().Section("server").Build()).ToString()
	switch errorCode(err) {
	case "":
		if err != nil {
			return version{}, err
		}
	case "NOAUTH", "BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN":
		return version{}, err
	default:
		return version{}, fmt.Errorf("%w: %w", errNoInfo, err)
	}
	v, mode := parseInfo(text)
	if !v.supported() {
		return v, &unfitError{fmt.Sprintf("%v at %s: Weir needs Redis >= 6.2 or Valkey >= 7.2", v, address), ErrVersion}
	}
	switch {
	case mode == "sentinel":
		return v, &unfitError{fmt.Sprintf("%v at %s is a Sentinel: write redis-sentinel://host,host/primary", v, address), ErrTopology}
	case mode == "cluster" && want != topologyCluster:
		return v, &unfitError{fmt.Sprintf("%v at %s is a node of a cluster: write redis-cluster://host,host", v, address), ErrTopology}
	case mode == "standalone" && want == topologyCluster:
		return v, &unfitError{fmt.Sprintf("%v at %s is no node of a cluster: write redis://host", v, address), ErrTopology}
	}
	return v, nil
}

// parseInfo reads the answer to INFO server. Valkey says which Redis it stands for as redis_version, and itself what it is.
func parseInfo(text string) (v version, mode string) {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	if text := fields["redis_version"]; text != "" {
		v = version{"redis", text}
	}
	if text := fields["valkey_version"]; text != "" {
		v = version{"valkey", text}
	}
	mode = fields["redis_mode"]
	if text := fields["server_mode"]; text != "" { // Valkey from 8 on
		mode = text
	}
	return v, mode
}
