package resp

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

func number(n int) string { return strconv.Itoa(n) }

func appendLine(b []byte, typ byte, n int) []byte {
	return append(strconv.AppendInt(append(b, typ), int64(n), 10), "\r\n"...)
}

// appendReply adds a random valid reply.
func appendReply(b []byte, r *rand.Rand, depth int) []byte {
	kinds := "$$$$+-:,(_#=!nN"
	if depth < maxDepth {
		kinds += "**%~"
	}
	text := func() []byte {
		t := make([]byte, r.IntN(40))
		for i := range t {
			t[i] = "ab \r\n\x00*$"[r.IntN(8)]
		}
		return t
	}
	switch k := kinds[r.IntN(len(kinds))]; k {
	case '$', '=', '!':
		t := text()
		return append(append(appendLine(b, k, len(t)), t...), "\r\n"...)
	case '+', '-', ',', '(':
		b = append(b, k)
		for range r.IntN(30) {
			b = append(b, "ab'\r"[r.IntN(4)])
		}
		return append(b, "\r\n"...)
	case ':':
		return append(strconv.AppendInt(append(b, ':'), int64(r.Uint64()), 10), "\r\n"...)
	case '#':
		return append(append(b, '#', "tf"[r.IntN(2)]), "\r\n"...)
	case '_':
		return append(b, "_\r\n"...)
	case 'n':
		return append(b, "$-1\r\n"...)
	case 'N':
		return append(b, "*-1\r\n"...)
	default:
		n := r.IntN(4)
		b = appendLine(b, k, n)
		if k == '%' {
			n *= 2
		}
		for range n {
			b = appendReply(b, r, depth+1)
		}
		return b
	}
}

// TestGeneratedRepliesPass: valid replies pass under any split into reads, and so do commands under
// any split into writes.
func TestGeneratedRepliesPass(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		var c Checker
		var commands, replies []byte
		for range 1 + r.IntN(5) {
			commands = appendCommand(commands, "EVALSHA", string(make([]byte, r.IntN(100))), "\r\n")
			replies = appendReply(replies, r, 0)
			for range r.IntN(2) {
				replies = append(replies, ">2\r\n+invalidate\r\n*-1\r\n"...)
			}
		}
		for len(commands) > 0 {
			n := 1 + r.IntN(min(len(commands), 20))
			if err := c.Sent(commands[:n]); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			commands = commands[n:]
		}
		for rest := replies; len(rest) > 0; {
			n := 1 + r.IntN(min(len(rest), 20))
			if got, err := c.Received(rest[:n]); got != n || err != nil {
				t.Fatalf("seed %d: %d of %q, %v; the replies are %q", seed, got, rest[:n], err, replies)
			}
			rest = rest[n:]
		}
		if n := c.Waiting(); n != 0 {
			t.Fatalf("seed %d: %d commands without a reply; the replies are %q", seed, n, replies)
		}
	}
}

// BenchmarkChecker has the commands and the reply of a batch of 16 requests.
func BenchmarkChecker(b *testing.B) {
	words := []string{"EVALSHA", "0123456789012345678901234567890123456789", "16"}
	for range 16 {
		words = append(words, "{weir:}0123456789012345678901")
	}
	commands := appendCommand(nil, append(words, string(make([]byte, 33+16*35)))...)
	reply := append(append(appendLine(nil, '$', 400), make([]byte, 400)...), "\r\n"...)
	var c Checker
	b.ReportAllocs()
	for b.Loop() {
		must.Do(b, c.Sent(commands))
		must.Get(c.Received(reply))(b)
	}
}
