package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"
)

// Errors of a server that Weir cannot use. Retries do not help: an operator must act. An error that
// wraps ErrVersion or ErrTopology also wraps ErrUnavailable.
var (
	ErrVersion  = errors.New("redis is too old")             // older than Redis 6.2 or Valkey 7.2
	ErrTopology = errors.New("redis is of another topology") // than the scheme of the URL says
)

// errorCode returns the first word of an error of Redis, as READONLY, and "" for other errors.
func errorCode(err error) string {
	said, ok := errors.AsType[*rueidis.RedisError](err)
	if !ok || said.IsNil() {
		return ""
	}
	code, _, _ := strings.Cut(said.Error(), " ")
	return code
}

// unfitError wraps ErrVersion or ErrTopology, and names the server.
type unfitError struct {
	text   string
	reason error
}

func (e *unfitError) Error() string   { return e.text }
func (e *unfitError) Unwrap() []error { return []error{ErrUnavailable, e.reason} }

func isUnfit(err error) bool { return errors.Is(err, ErrVersion) || errors.Is(err, ErrTopology) }

type version struct {
	product string // "redis" or "valkey"; "" is unknown
	text    string
}

// String returns the product and the version, as "redis 7.2.4".
func (v version) String() string {
	if v.product == "" {
		return "unknown"
	}
	return v.product + " " + v.text
}

// supported reports whether Weir works with the version: Redis from 6.2 on, Valkey from 7.2 on.
func (v version) supported() bool {
	var x, y int
	if n, _ := fmt.Sscanf(v.text, "%d.%d", &x, &y); n == 0 {
		return true // "unstable" or the like, of a build of its own
	}
	if v.product == "valkey" {
		return x > 7 || x == 7 && y >= 2
	}
	return x > 6 || x == 6 && y >= 2
}

var errNoInfo = errors.New("INFO is refused")

// askVersion asks the server at an address for its version and topology, and passes the whole
// answer to told. KeyDB and Dragonfly answer with the version of Redis that they are compatible
// with. A server whose ACL forbids INFO counts as new enough, and returns errNoInfo. After other
// errors the server cannot be used now, and after ErrVersion or ErrTopology not at all.
func askVersion(
	ctx context.Context, node rueidis.Client, address string, want topology, told func(info map[string]string),
) (version, error) {
	text, err := node.Do(ctx, node.B().Info().Build()).ToString()
	switch errorCode(err) {
	case "":
		if err != nil {
			return version{}, err
		}
	case "NOAUTH", "WRONGPASS", "BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN":
		return version{}, err
	default:
		return version{}, fmt.Errorf("%w: %w", errNoInfo, err)
	}
	info := fieldsOf(text)
	told(info)
	v, mode := parseInfo(info)
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

func fieldsOf(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}

// parseInfo returns the version and the mode in an answer to INFO. Valkey has its own version in
// valkey_version, and in redis_version a version of Redis that Valkey is compatible with.
func parseInfo(fields map[string]string) (v version, mode string) {
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
