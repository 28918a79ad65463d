package redisconn

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// The answers of a fuzzed server stand after each other, with this byte between them.
const nextAnswer = 0xff

// FuzzRueidisBehindTheChecker drives a whole rueidis client against a server whose answers are data. A panic in a goroutine of rueidis
// ends the process, and so the fuzzer. The mode is a topology, and whether the answer to HELLO is a valid one of RESP3 or of RESP2, or
// data, too.
func FuzzRueidisBehindTheChecker(f *testing.F) {
	shards := "*1\r\n%2\r\n+slots\r\n*2\r\n:0\r\n:16383\r\n+nodes\r\n*1\r\n%4\r\n+port\r\n:1\r\n+endpoint\r\n+h\r\n+role\r\n+master\r\n+health\r\n+online\r\n"
	slots := "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n+h\r\n:1\r\n"
	confirmed := strings.Repeat(">3\r\n+subscribe\r\n+c\r\n:1\r\n", 6)
	for mode := range uint8(9) {
		for _, answers := range [][]string{
			{":1\r\n", "$-1\r\n", "+OK\r\n+OK\r\n"},
			{"$-5\r\n"}, {"*2147483647\r\n"}, {"%-1\r\n"}, {"$?\r\n;-5\r\n"}, {strings.Repeat("*1\r\n", 1000)},
			{slots, ":1\r\n", "-MOVED 1\r\n"}, {shards, "-MOVED 1 h:1\r\n", "-ASK 1 h:1\r\n"},
			{"", "+PONG\r\n", "", "*0\r\n", "*2\r\n+h\r\n+1\r\n", confirmed, "*1\r\n+master\r\n", ">3\r\n+message\r\n++switch-master\r\n+a b\r\n"},
			{"-NOPERM\r\n", "+PONG\r\n", "*0\r\n", "*0\r\n"}, {"+QUEUED\r\n"}, {">3\r\n+unsubscribe\r\n_\r\n:0\r\n", "+PONG\r\n"},
			{"*3\r\n+subscribe\r\n+a\r\n:1\r\n", "*2\r\n+pong\r\n+\r\n"},
		} {
			f.Add(mode, []byte(strings.Join(answers, string([]byte{nextAnswer}))))
		}
	}
	targets := []Target{}
	for _, url := range []string{"redis://h", "redis-sentinel://h/main", "redis-cluster://h"} {
		target, err := ParseTarget(TargetOptions{URLs: []string{url}})
		if err != nil {
			f.Fatal(err)
		}
		targets = append(targets, target)
	}
	logins := []string{
		"%2\r\n$7\r\nversion\r\n$5\r\n6.2.0\r\n$5\r\nproto\r\n:3\r\n",
		"-ERR unknown command 'HELLO'\r\n",
		"",
	}
	f.Fuzz(func(t *testing.T, mode uint8, data []byte) {
		t.Parallel()
		answers := bytes.Split(data, []byte{nextAnswer})
		c := &Conn{target: targets[mode%3], logger: slog.New(slog.DiscardHandler)}
		var stop context.CancelFunc
		c.ctx, stop = context.WithTimeout(context.Background(), time.Second)
		defer stop()
		s := &session{conn: c, ctx: c.ctx}
		client, err := rueidis.NewClient(c.clientOption(func(_ context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			near, far := net.Pipe()
			go answerWith(far, logins[mode/3%3], answers)
			open := &checked{Conn: near, address: address, invalid: func(string, error) {}}
			return &fetched{checked: open, session: s, address: address, sentinel: dialer.LocalAddr == toSentinel{}}, nil
		}))
		if client == nil {
			return
		}
		defer client.Close()
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, 20*time.Millisecond)
		defer cancel()
		get := client.B().Get().Key("a").Build().Pin()
		client.DoMulti(ctx, get, get, get)
		_ = client.Do(ctx, client.B().Ping().Message("0123").Build()).Error()
		_ = client.Receive(ctx, client.B().Subscribe().Channel("a", "b").Build(), func(rueidis.PubSubMessage) {})
		_ = client.Do(ctx, get).Error()
	})
}

// answerWith answers each command with the next answer, and closes the connection after the last one.
func answerWith(conn net.Conn, login string, answers [][]byte) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for len(answers) > 0 {
		if conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)) != nil { // the client may wait for the rest of an answer
			return
		}
		words, err := readCommand(in)
		if err != nil {
			return
		}
		answer := []byte(login)
		if words[0] != "HELLO" || login == "" {
			answer, answers = answers[0], answers[1:]
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}
