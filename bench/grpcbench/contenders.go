package main

import (
	"encoding/binary"
	"fmt"
	"slices"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/bench/drive"
)

const (
	codeOK        = ratelimitv3.RateLimitResponse_OK
	codeOverLimit = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// ruleFile has two rules that never deny, the bucket of which is never full either, and one that denies from the second request
// on.
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
`

// message returns a request of one client.
func message(path string, client int) ([]byte, error) {
	return drive.Request("bench", []drive.Entry{{Key: "path", Value: path}, {Key: "client_id", Value: fmt.Sprintf("c-%d", client)}})
}

// body returns a request as gRPC sends it: five bytes (not compressed, length) and the message.
func body(path string) ([]byte, error) {
	m, err := message(path, 4711)
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
}

// all returns the contenders of the options. The first one is measured always: the bare server, or with leases a server in memory.
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
		return []contender{{name: "bare", kind: "bare"}, {name: "grpc", kind: "grpc"}, {name: "lane", kind: "lane"}, {name: "no filter"}}
	case b.o.idle > 0, b.o.profile > 0:
		return []contender{bare, allowed("grpc", "grpc"), allowed("lane", "lane")}
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
			bare, allowed("grpc", "grpc"), over("grpc over limit", "grpc"),
			allowed("lane", "lane"), over("lane over limit", "lane"), allowed("lane net.Conn", "net.Conn"), allowed("nghttpd", "nghttpd"),
		}
	}
	if b.o.network == "unix" {
		all[len(all)-1].name = "nghttpd, TCP" // which has no Unix socket
	}
	if b.o.keys > 1 {
		all = slices.DeleteFunc(all, func(c contender) bool { return c.want == codeOverLimit || c.kind == "nghttpd" })
	}
	return all
}
