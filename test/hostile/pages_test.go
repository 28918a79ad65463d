package hostile

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// pageAttacks are requests to the HTTP port.
func pageAttacks() []attack {
	return []attack{
		{
			name:  "json_of_many_items",
			how:   "10 POSTs to `/json` at once, with 1 400 000 empty entries in 4 MiB",
			bound: "`--max-request-bytes`, items while decoding, bodies under way",
			run: func(a *assault) {
				post(a, 10, `{"descriptors":[{"entries":[`+strings.Repeat("{},", 1_390_000)+`{}]}]}`, nil)
			},
		},
		{
			name:  "json_of_many_items_in_small_bodies",
			how:   "200 POSTs to `/json` at once, with 20 000 empty entries in 60 KB",
			bound: "items while decoding, bodies under way",
			run:   smallBodies,
		},
		{
			name:  "json_of_many_levels",
			how:   "50 POSTs to `/json` at once, with 10 000 levels of objects",
			bound: "levels while decoding",
			run: func(a *assault) {
				post(a, 50, strings.Repeat(`{"a":`, 10_000)+"1"+strings.Repeat("}", 10_000), nil)
			},
		},
		{
			name:  "foreign_refunds",
			how:   "a web page elsewhere refunds the honest client's keys by `/json`, with its Origin, its Host and text/plain",
			bound: "`application/json`, Origin and Host checked; refunds only with `--http-json-allow`",
			run:   foreignRefunds,
		},
		{
			name:  "large_http_headers",
			how:   "2 000 connections send 60 KB of headers each and wait with the body",
			bound: "16 KiB of headers, 10 seconds for a request, connections",
			run:   func(a *assault) { largeHeaders(a, 6000) },
		},
		{
			name:  "held_http_headers",
			how:   "2 000 connections send 1600 headers in 15 KB each and wait with the body",
			bound: "10 seconds for a request, connections",
			run:   func(a *assault) { largeHeaders(a, 1600) },
		},
		{
			name:  "slowloris",
			how:   "2 000 connections send a header line each second and never end their headers",
			bound: "5 seconds for the headers, connections",
			run:   slowloris,
		},
		{
			name:  "idle_http_connections",
			how:   "10 000 connections to the HTTP port say nothing",
			bound: "connections, 5 seconds for the headers",
			run:   func(a *assault) { a.crowd(10_000, a.addresses.HTTP, nil) },
		},
		{
			name:  "unread_pages",
			how:   "500 connections ask for /metrics and /rules without end and read nothing",
			bound: "4 requests for a page at once, 15 seconds for an answer, connections",
			run:   unreadPages,
		},
	}
}

// post sends a body to /json on n connections, again and again.
func post(a *assault, n int, body string, fields map[string]string) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n, DisableCompression: true}}
	defer client.CloseIdleConnections()
	a.repeat(n, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.addresses.HTTP+"/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		for name, value := range fields {
			if name == "Host" {
				r.Host = value
				continue
			}
			r.Header.Set(name, value)
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			return err
		}
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", answer.StatusCode)
		}
		return nil
	})
}

func smallBodies(a *assault) {
	post(a, 200, `{"descriptors":[{"entries":[`+strings.Repeat("{},", 19_999)+`{}]}]}`, nil)
}

// largeHeaders sends so many headers on each of 2000 connections, and no body.
func largeHeaders(a *assault, fields int) {
	var head strings.Builder
	head.WriteString("POST /json HTTP/1.1\r\nHost: " + a.addresses.HTTP + "\r\nContent-Type: application/json\r\nContent-Length: 10\r\n")
	for i := range fields {
		fmt.Fprintf(&head, "X%d: v\r\n", i)
	}
	head.WriteString("\r\n")
	a.crowd(2000, a.addresses.HTTP, []byte(head.String()))
}

// foreignRefunds gives back hits of the keys that the honest client must find spent.
func foreignRefunds(a *assault) {
	body := `{"domain":"hostile","descriptors":[` +
		`{"entries":[{"key":"small","value":"honest"}],"hitsAddend":"50","isNegativeHits":true},` +
		`{"entries":[{"key":"weighted","value":"honest"}],"hitsAddend":"100","isNegativeHits":true}]}`
	post(a, 2, body, map[string]string{"Content-Type": "text/plain", "Origin": "http://elsewhere.example", "Host": "elsewhere.example"})
}

func slowloris(a *assault) {
	a.repeat(2000, func(ctx context.Context) error {
		conn, err := a.dial(ctx, a.addresses.HTTP)
		if err != nil {
			return err
		}
		line := []byte("POST /json HTTP/1.1\r\nHost: weir\r\n")
		for ctx.Err() == nil {
			if _, err := conn.Write(line); err != nil {
				return err
			}
			line = []byte("X-Slow: loris\r\n")
			a.pause(time.Second)
		}
		return nil
	})
}

func unreadPages(a *assault) {
	var ask bytes.Buffer
	for _, page := range []string{"/metrics", "/rules"} {
		fmt.Fprintf(&ask, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", page, a.addresses.HTTP)
	}
	a.repeat(500, func(ctx context.Context) error {
		conn, err := a.dial(ctx, a.addresses.HTTP)
		if err != nil {
			return err
		}
		out := bufio.NewWriter(conn)
		for ctx.Err() == nil {
			if _, err := out.Write(ask.Bytes()); err != nil {
				return err
			}
		}
		return nil
	})
}
