package hostile

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// messageAttacks are calls of gRPC whose messages are large, many or never whole.
func messageAttacks() []attack {
	return []attack{
		{
			name:  "held_large_messages",
			how:   "4 connections with 100 streams hold messages of 4 MiB open, but for their last byte",
			bound: "`--max-request-bytes`",
			run:   func(a *assault) { holdMessages(a, 4, 4<<20) },
		},
		{
			name:  "held_messages_on_many_connections",
			how:   "200 connections with 100 streams hold messages of 60 KiB open, but for their last byte",
			bound: "1024 streams of a connection, `--max-bytes-in-flight`",
			run:   func(a *assault) { holdMessages(a, 200, 60<<10) },
		},
		{
			name:  "gzip_bombs",
			how:   "8 connections with 100 streams send messages of 4 KB that inflate to 4 MiB",
			bound: "no compression",
			run:   gzipBombs,
		},
		{
			name:  "most_charges",
			how:   "4 connections with 50 streams send 102 descriptors with long values for a rule with 40 limits, and 103",
			bound: "4096 charges, `--max-bytes-in-flight`",
			fresh: true,
			run:   mostCharges,
		},
		{
			name:  "most_descriptors",
			how:   "4 connections with 50 streams send as many descriptors as a request may have",
			bound: "`--max-request-bytes`, 1000 descriptors",
			fresh: true,
			run:   mostDescriptors,
		},
	}
}

// holdMessages begins messages of so many bytes on 100 streams of each connection, and never ends
// them.
func holdMessages(a *assault, conns, size int) {
	part := frame(make([]byte, size), false)
	part = part[:len(part)-1]
	a.calls(conns, 100, method, func(ctx context.Context) io.Reader { return stall(ctx, part) })
}

func gzipBombs(a *assault) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(make([]byte, 4<<20))
	a.fail(errors.Join(err, w.Close()))
	bomb := frame(packed.Bytes(), true)
	a.calls(8, 100, method, func(context.Context) io.Reader { return bytes.NewReader(bomb) }, entry{"Grpc-Encoding", "gzip"})
}

// thousand returns an encoded request with 1000 descriptors whose values have so many bytes.
func (a *assault) thousand(from, width int) []byte {
	entries := make([]entry, 1000)
	for i := range entries {
		value := fmt.Sprintf("%d-", from+i)
		entries[i] = entry{"flood", value + strings.Repeat("v", max(0, width-len(value)))}
	}
	return a.encode(request(1, entries...))
}

func mostDescriptors(a *assault) {
	body := a.thousand(0, 40) // 58 KB
	a.calls(4, 50, method, func(context.Context) io.Reader { return bytes.NewReader(body) })
}

// mostCharges sends requests of 4080 charges with keys of 500 bytes, and of 4120, which are
// refused.
func mostCharges(a *assault) {
	of := func(descriptors int) []byte {
		entries := make([]entry, descriptors)
		for i := range entries {
			entries[i] = entry{"many", fmt.Sprintf("%d-%s", i, strings.Repeat("v", 500))}
		}
		return a.encode(request(1, entries...))
	}
	most, more := of(102), of(103)
	a.calls(4, 50, method, func(context.Context) io.Reader {
		if a.attempts.Load()%4 == 0 {
			return bytes.NewReader(more)
		}
		return bytes.NewReader(most)
	})
}
