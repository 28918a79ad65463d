package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
)

// oldRedis serves as a Redis 6.0 that answers to all commands until the test ends, and returns its
// address.
func oldRedis(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for in := bufio.NewReader(conn); ; {
					command, err := readCommand(in)
					if err != nil {
						return
					}
					if _, err := io.WriteString(conn, answerOfOld(command)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// readCommand reads a command, an array of bulk strings, and returns its words.
func readCommand(in *bufio.Reader) ([]string, error) {
	number := func(mark string) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), mark))
	}
	n, err := number("*")
	if err != nil {
		return nil, err
	}
	var words []string
	for range n {
		length, err := number("$")
		if err != nil {
			return nil, err
		}
		word := make([]byte, length+len("\r\n"))
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:length]))
	}
	return words, nil
}

func answerOfOld(command []string) string {
	switch strings.ToUpper(command[0]) {
	case "HELLO":
		return "%3\r\n+server\r\n+redis\r\n+version\r\n+6.0.16\r\n+proto\r\n:3\r\n"
	case "INFO":
		const info = "# Server\r\nredis_version:6.0.16\r\nredis_mode:standalone\r\n"
		return fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
	default:
		return "+OK\r\n"
	}
}

func TestARedisThatIsTooOldEndsTheStart(t *testing.T) {
	address := oldRedis(t)
	var log strings.Builder
	err := run(t.Context(), []string{
		"serve", "--rules", rulesFile(t, rulesOf("5")), "--store=redis", "--redis-url=redis://" + address,
		"--grpc-address=127.0.0.1:0", "--http-address=", "--admin-address=",
	}, strings.NewReader(""), io.Discard, &log)
	if want := "redis 6.0.16 at " + address + ": Weir needs Redis >= 6.2 or Valkey >= 7.2"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if strings.Contains(log.String(), "listening") {
		t.Errorf("it has listened:\n%s", log.String())
	}
}
