package hostile

import (
	"context"
	"crypto/rand"
	"io"
	"sync"

	"golang.org/x/net/http2"
)

// connectionAttacks are connections of the gRPC port that ask nothing.
func connectionAttacks() []attack {
	return []attack{
		{
			name:  "idle_connections",
			how:   "10 000 connections say nothing",
			bound: "`--max-connections`, 10 seconds for the handshake",
			run:   func(a *assault) { a.crowd(10_000, a.address, nil) },
		},
		{
			name:  "half_handshakes",
			how:   "10 000 connections send half of HTTP/2's preface",
			bound: "`--max-connections`, 10 seconds for the handshake",
			run:   func(a *assault) { a.crowd(10_000, a.address, []byte(http2.ClientPreface[:12])) },
		},
		{
			name:  "idle_handshakes",
			how:   "10 000 connections of HTTP/2 ask nothing",
			bound: "`--max-connections`",
			run:   func(a *assault) { a.crowd(10_000, a.address, []byte(greeting)) },
		},
		{
			name:  "foreign_protocols",
			how:   "100 connections at once send HTTP/1, TLS or noise to the gRPC port, again and again",
			bound: "HTTP/2's preface",
			run:   foreignProtocols,
		},
		{
			name:  "brief_connections",
			how:   "50 connections at once connect and close, again and again",
			bound: "no memory stays",
			run: func(a *assault) {
				a.repeat(50, func(ctx context.Context) error {
					_, err := a.dial(ctx, a.address)
					return err // the end of ctx closes the connection
				})
			},
		},
	}
}

// greeting begins a connection of HTTP/2: the preface and an empty SETTINGS frame.
const greeting = http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

func foreignProtocols(a *assault) {
	noise := make([]byte, 32<<10)
	if _, err := rand.Read(noise); err != nil {
		a.fail(err)
	}
	greetings := [][]byte{
		[]byte("POST /json HTTP/1.1\r\nHost: weir\r\nContent-Length: 2\r\n\r\n{}"),
		[]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), // the start of a ClientHello
		noise,
		append([]byte(http2.ClientPreface), noise...),
	}
	var mu sync.Mutex // guards next
	next := 0
	a.repeat(100, func(ctx context.Context) error {
		mu.Lock()
		first := greetings[next%len(greetings)]
		next++
		mu.Unlock()
		conn, err := a.dial(ctx, a.address)
		if err != nil {
			return err
		}
		if _, err := conn.Write(first); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, conn)
		return err
	})
}
