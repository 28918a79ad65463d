package main

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/bench/drive"
)

const (
	codeOK        = ratelimitv3.RateLimitResponse_OK
	codeOverLimit = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// ruleFile has two rules that never deny, the bucket of which is never full either, and one that
// denies from the second request on.
const ruleFile = `domain: bench
descriptors:
  - key: path
    value: /search
    descriptors:
      - key: client_id
        rate_limit: {unit: second, requests_per_unit: 4294967295}
  - key: path
    value: /bucket
    descriptors:
      - key: client_id
        rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4294967295}
  - key: path
    value: /login
    descriptors:
      - key: client_id
        rate_limit: {unit: year, requests_per_unit: 1}
  - key: path
    value: /held
    descriptors:
      - key: client_id
        rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4294967295, hold: {begin: request, end: done, at_most: 1h}}
  - key: path
    value: /slots
    descriptors:
      - key: client_id
        rate_limit: {algorithm: concurrency, max_in_flight: 4294967295, hold: {begin: request, end: done, at_most: 1h}}
`

// theClient is the number of the client of all requests, of the first one with many keys.
const theClient = 4711

// message returns a request of one client, with more entries at the end of the descriptor.
func message(path string, client int, more ...drive.Entry) ([]byte, error) {
	entries := []drive.Entry{{Key: "path", Value: path}, {Key: "client_id", Value: fmt.Sprintf("c-%d", client)}}
	return drive.Request("bench", append(entries, more...))
}

// holders is how many holders of a contender begin and end in turns. Half of them hold at a time.
const holders = 20_000

// messages returns the requests of a contender to so many keys. Holders begin and end in turns, all
// under one key.
func (c *contender) messages(keys int) (all [][]byte, err error) {
	if !c.holds() {
		for i := range keys {
			m, err := message(c.path, theClient+i)
			if err != nil {
				return nil, err
			}
			all = append(all, m)
		}
		return all, nil
	}
	for i := range 2 * holders {
		entry := drive.Entry{Key: "request", Value: fmt.Sprintf("%032x", i/2)}
		if i%2 == 1 {
			entry = drive.Entry{Key: "done", Value: fmt.Sprintf("%032x", (i/2+holders/2)%holders)}
		}
		m, err := message(c.path, theClient, entry)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// manyKeys returns how many keys the requests without holders have at least. Redis takes equal
// requests of a call together, and no two requests with holders are equal.
func (o *options) manyKeys() int {
	if o.holds {
		return holders
	}
	return 1
}

// holds reports whether the requests of a contender begin and end holders.
func (c *contender) holds() bool { return c.path == "/held" || c.path == "/slots" }

// body returns a request as gRPC sends it: five bytes (not compressed, length) and the message.
func body(path string) ([]byte, error) {
	m, err := message(path, theClient)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...), err
}

// contender is a server with the requests that it gets.
type contender struct {
	name   string
	kind   string // of the server; "": no server, Envoy answers alone
	path   string // in the request; "": Envoy gets a GET
	want   ratelimitv3.RateLimitResponse_Code
	server *server
	redis  bool   // the server asks Redis
	body   string // a file
	envoy  string // host:port of Envoy's listener that asks the server; "": clients ask the server
	turns  []turn
	next   *atomic.Int64 // number of the next message of a holder; nil: other messages
}

// all returns the contenders of the options. The first one is measured always: the bare server, or
// with leases a server in memory.
func (b *bench) all() []contender {
	bare := contender{name: "bare", kind: "bare", path: "/search", want: codeOK}
	allowed := func(name, kind string) contender {
		return contender{name: name, kind: kind, path: "/search", want: codeOK}
	}
	over := func(name, kind string) contender {
		return contender{name: name, kind: kind, path: "/login", want: codeOverLimit}
	}
	var all []contender
	switch {
	case b.o.envoy:
		for _, name := range []string{"bare", "floor", "grpc", "lane", "pair"} {
			all = append(all, contender{name: name, kind: name})
		}
		return append(all, contender{name: "no filter"})
	case b.o.idle > 0, b.o.profile > 0:
		return []contender{bare, allowed("grpc", "grpc"), allowed("lane", "lane")}
	case b.o.holds:
		kind := "lane"
		if b.o.redis {
			kind = "redis lane"
		}
		for path, name := range map[string]string{"/bucket": "token_bucket", "/held": "token_bucket, held", "/slots": "concurrency"} {
			all = append(all, contender{name: name, kind: kind, redis: b.o.redis, path: path, want: codeOK, next: new(atomic.Int64)})
		}
		slices.SortFunc(all, func(x, y contender) int { return strings.Compare(x.path, y.path) })
		return append([]contender{bare}, all...)
	case b.o.leased:
		for _, path := range []string{"/search", "/bucket"} {
			name := map[string]string{"/search": " fixed_window", "/bucket": " token_bucket"}[path]
			all = append(all,
				contender{name: "memory" + name, kind: "lane", path: path, want: codeOK},
				contender{name: "exact" + name, kind: "exact lane", redis: true, path: path, want: codeOK},
				contender{name: "leased" + name, kind: "leased lane", redis: true, path: path, want: codeOK})
		}
	case b.o.redis:
		all = []contender{bare}
		for _, kind := range []string{"grpc", "lane"} {
			redis := "redis " + kind
			all = append(all,
				contender{name: kind + " fixed_window", kind: redis, redis: true, path: "/search", want: codeOK},
				contender{name: kind + " token_bucket", kind: redis, redis: true, path: "/bucket", want: codeOK},
				contender{name: kind + " over limit", kind: redis, redis: true, path: "/login", want: codeOverLimit},
				over(kind+" over, memory", kind))
		}
	case b.o.network == "tls":
		return []contender{bare, allowed("grpc", "grpc"), allowed("lane", "lane")}
	default:
		all = []contender{
			bare, allowed("floor", "floor"), allowed("grpc", "grpc"), over("grpc over limit", "grpc"), allowed("lane", "lane"),
			allowed("pair", "pair"), over("lane over limit", "lane"), allowed("lane net.Conn", "net.Conn"), allowed("nghttpd", "nghttpd"),
		}
	}
	return slices.DeleteFunc(all, func(c contender) bool {
		return c.want == codeOverLimit && b.o.keys > 1 || c.kind == "nghttpd" && (!b.o.h2load || b.o.network == "unix") // nghttpd has no Unix socket
	})
}
