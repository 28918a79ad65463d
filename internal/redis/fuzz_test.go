package redis

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/testing/must"
)

// The answers of a fuzzed server stand after each other, with this byte between them.
const nextAnswer = 0xff

// driveRueidis drives a whole rueidis client against a server whose answers are data. A panic in a
// goroutine of rueidis ends the process. The mode is a topology, and whether the answer to HELLO is
// a valid one of RESP3 or of RESP2, or data, too.
func driveRueidis(tb testing.TB, mode uint8, data []byte) {
	tb.Helper()
	url := []string{"redis://h", "redis-sentinel://h/main", "redis-cluster://h"}[mode%3]
	target := must.Get(Options{URLs: []string{url}}.Parse())(tb)
	login := []string{
		"%2\r\n$7\r\nversion\r\n$5\r\n6.2.0\r\n$5\r\nproto\r\n:3\r\n",
		"-ERR unknown command 'HELLO'\r\n",
		"",
	}[mode/3%3]
	answers := bytes.Split(data, []byte{nextAnswer})
	c := newConn(target, slog.New(slog.DiscardHandler))
	c.ctx, c.stop = context.WithTimeout(context.Background(), time.Second)
	defer c.stop()
	s := &session{conn: c, ctx: c.ctx, first: []string{"h:1"}}
	client, err := rueidis.NewClient(c.clientOption(target.addresses, func(_ context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		near, far := net.Pipe()
		go answerWith(far, login, answers)
		open := &checked{Conn: near, address: address, invalid: func(string, error) {}}
		return &fetched{checked: open, session: s}, nil
	}, &c.login))
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
	s.client = client
	if client.Mode() == rueidis.ClientModeCluster {
		_ = s.askNodes()
	}
	client.DoMulti(ctx, get, get, get)
	_ = client.Do(ctx, client.B().Ping().Message("0123").Build()).Error()
	_ = s.checkRole()
	if c.sentinels != nil {
		c.sentinels.client = client
		_, _ = c.sentinels.askLocked()
	}
	_ = client.Do(ctx, get).Error()
}

// answerPieces are answers that the checker or rueidis treats in a way of their own.
func answerPieces() []string {
	return []string{
		":1\r\n", "$-1\r\n", "*-1\r\n", "_\r\n", "+OK\r\n", "$5\r\nhello\r\n", "*0\r\n", "*2\r\n+h\r\n+1\r\n", "*1\r\n+a\r\n", "%0\r\n", "",
		"$-5\r\n", "*2147483647\r\n", "%-1\r\n", "$?\r\n;-5\r\n", "|1\r\n+a\r\n+b\r\n", ">-1\r\n", ">0\r\n", ".\r\n", strings.Repeat("*1\r\n", 1000),
		"*1\r\n%2\r\n+slots\r\n*2\r\n:0\r\n:16383\r\n+nodes\r\n*1\r\n%4\r\n+port\r\n:1\r\n+endpoint\r\n+h\r\n+role\r\n+master\r\n+health\r\n+online\r\n",
		"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n+h\r\n:1\r\n", "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n+h\r\n:1\r\n+id\r\n",
		"*1\r\n*3\r\n:-5\r\n:9999999\r\n*3\r\n+h\r\n:1\r\n+id\r\n", "*1\r\n*3\r\n:9\r\n:-9\r\n*3\r\n+h\r\n:1\r\n_\r\n",
		"-MOVED 1\r\n", "-MOVED 1 h:1\r\n", "-ERR ASK\r\n", "-ASK 1 h:1\r\n", "-REDIRECT\r\n", "-REDIRECT h:1\r\n", "-NOPERM\r\n", "-LOADING\r\n", "-BUSY\r\n", "-ERR the 'ping' command\r\n",
		"+PONG\r\n", "*2\r\n+pong\r\n+\r\n", "+QUEUED\r\n", "-QUEUED\r\n", "*1\r\n+master\r\n", "$4\r\n0123\r\n", "*1\r\n>2\r\n+a\r\n+b\r\n",
		strings.Repeat(">3\r\n+subscribe\r\n+c\r\n:1\r\n", 6), strings.Repeat("*3\r\n+subscribe\r\n+c\r\n:1\r\n", 6), ">3\r\n+subscribe\r\n+a\r\n:1\r\n",
		">3\r\n+unsubscribe\r\n_\r\n:0\r\n", "*3\r\n+unsubscribe\r\n*-1\r\n:0\r\n", ">2\r\n+invalidate\r\n*-1\r\n",
		">3\r\n+message\r\n++switch-master\r\n+main b\r\n", ">3\r\n+message\r\n++switch-master\r\n+main a 1 b 2\r\n", ">3\r\n+message\r\n++sentinel\r\n+s\r\n",
		">3\r\n+message\r\n++sentinel\r\n+s t h 2 @ main\r\n", "*3\r\n+message\r\n++reboot\r\n+master\r\n", ">3\r\n+message\r\n++reboot\r\n+master main h 1\r\n",
	}
}

// FuzzRueidisBehindTheChecker: no answers of a server end the process.
func FuzzRueidisBehindTheChecker(f *testing.F) {
	for mode := range uint8(9) {
		f.Add(mode, []byte(strings.Join(answerPieces(), string([]byte{nextAnswer}))))
	}
	f.Fuzz(func(t *testing.T, mode uint8, data []byte) {
		driveRueidis(t, mode, data)
	})
}

// TestRandomAnswersDoNotEndTheProcess is the fuzzer with answers that come further.
// WEIR_RANDOM_ANSWERS is the number of runs.
func TestRandomAnswersDoNotEndTheProcess(t *testing.T) {
	t.Parallel()
	runs := 300
	if text := os.Getenv("WEIR_RANDOM_ANSWERS"); text != "" {
		var err error
		if runs, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	pieces := answerPieces()
	next := make(chan uint64)
	var drivers sync.WaitGroup
	for range 16 { // most of a run is waiting
		drivers.Go(func() {
			for seed := range next {
				r := rand.New(rand.NewPCG(seed, 0))
				var data []byte
				for range 1 + r.IntN(12) {
					for range 1 + r.IntN(8)/6 {
						data = append(data, pieces[r.IntN(len(pieces))]...)
					}
					if len(data) > 0 && r.IntN(20) == 0 {
						data[r.IntN(len(data))] = byte(r.IntN(256))
					}
					data = append(data, nextAnswer)
				}
				driveRueidis(t, uint8(r.IntN(9)), data)
			}
		})
	}
	for seed := range uint64(runs) {
		next <- seed
	}
	close(next)
	drivers.Wait()
}

// answerWith answers each command with the next answer, and closes the connection after the last
// one.
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
