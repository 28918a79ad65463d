package resp

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{})
}

// write returns commands as a client writes them. Words of a command are separated by blanks.
func write(commands ...string) []byte {
	var b []byte
	for _, c := range commands {
		b = appendCommand(b, strings.Fields(c)...)
	}
	return b
}

func appendCommand(b []byte, words ...string) []byte {
	b = appendLine(b, '*', len(words))
	for _, w := range words {
		b = append(appendLine(b, '$', len(w)), w+"\r\n"...)
	}
	return b
}

// confirmations returns n pushes.
func confirmations(kind string, n int) string {
	return strings.Repeat(">3\r\n$"+number(len(kind))+"\r\n"+kind+"\r\n$1\r\nc\r\n:1\r\n", n)
}

// TestInvalidRepliesAreRefused: each of these ends the process, or makes rueidis take one reply for
// another.
func TestInvalidRepliesAreRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, command, reply, reason string }{
		{"one reply too many", "GET a", "+OK\r\n+OK\r\n", "without a command"},
		{"a reply before any command", "", "+OK\r\n", "without a command"},
		{"a negative length of a text", "GET a", "$-5\r\n", "the length -5 of the type '$'"},
		{"a negative length of an array", "GET a", "*-2\r\n", "the length -2 of the type '*'"},
		{"a negative length of a map", "GET a", "%-1\r\n", "the length -1 of the type '%'"},
		{"a null push", "GET a", ">-1\r\n", "the length -1 of the type '>'"},
		{"an array of 2^31-1 elements", "GET a", "*2147483647\r\n", "a length of 2147483647"},
		{"an array of 2^20 elements", "GET a", "*1048576\r\n", "at most 4194304 bytes"},
		{"a map whose elements overflow", "GET a", "%4611686018427387905\r\n", "a length of 4611686018427387905"},
		{"a text of 5 MiB", "GET a", "$5242880\r\n", "at most 4194304 bytes"},
		{"a text of 2^63-1 bytes", "GET a", "$9223372036854775807\r\n", "a length of 9223372036854775807"},
		{"a length beyond 64 bits", "GET a", "$18446744073709551611\r\n", "more than 19 digits"},
		{"a text of a cluster of 64 MiB", "CLUSTER SLOTS", "$67108864\r\n", "at most 33554432 bytes"},
		{"arrays that are too much together", "GET a", "*50000\r\n*50000\r\n*50000\r\n", "a length of 50000"},
		{"arrays without end in arrays", "GET a", strings.Repeat("*1\r\n", 9), "arrays in more than 8 arrays"},
		{"an unknown type", "GET a", "HTTP/1.1 400 Bad Request\r\n", `the type 'H'`},
		{"a text of unknown length", "GET a", "$?\r\n", `a number with the byte '?'`},
		{"an array of unknown length", "GET a", "*?\r\n", `a number with the byte '?'`},
		{"a chunk", "GET a", ";3\r\nabc\r\n", `the type ';'`},
		{"the end of a stream", "GET a", ".\r\n", `the type '.'`},
		{"an attribute", "GET a", "|1\r\n+a\r\n+b\r\n+OK\r\n", `the type '|'`},
		{"a push in a reply", "GET a", "*2\r\n>2\r\n", "a push inside a reply"},
		{"an integer that is none", "GET a", ":1x\r\n", `the byte 'x'`},
		{"an integer without digits", "GET a", ":\r\n", `the byte '\r'`},
		{"an integer beyond 64 bits", "GET a", ":9223372036854775808\r\n", "outside of 64 bits"},
		{"a length without a line end", "GET a", "$1\ra", "a number without a line end"},
		{"a text that is longer than its length", "GET a", "$1\r\nab\r\n", "without a line end"},
		{"a text with half a line end", "GET a", "$1\r\na\ra", "without a line end"},
		{"a null with more", "GET a", "_x\r\n", "without a line end"},
		{"a boolean that is none", "GET a", "#x\r\n", "a boolean"},
		{"a line without end", "GET a", "+" + strings.Repeat("a", maxLine+1), "a line of more than 65536 bytes"},
		{"a line without a carriage return", "GET a", "+OK\n", "without a carriage return"},
		{"an empty line without a carriage return", "GET a", "+\n", "without a carriage return"},
		{"MOVED without a node", "EVALSHA a", "-MOVED 1\r\n", "names no node"},
		{"ASK without a node", "EVALSHA a", "-ERR ASK\r\n", "names no node"},
		{"a blob error without a node", "EVALSHA a", "!5\r\nMOVED\r\n", "names no node"},
		{"a PING with another answer", "PING abc", "$3\r\nabd\r\n", "the answer to another command"},
		{"a subscription that nobody asked for", "", confirmations("subscribe", 1), "without a command"},
		{"a subscription before another reply", "GET a", confirmations("subscribe", 1), "without a command"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for step := 1; step <= len(test.reply) && step < 100; step++ {
				var c Checker
				sent := write(strings.Split(test.command, "\n")...)
				if test.command == "" {
					sent = nil
				}
				must.Do(t, c.Sent(sent))
				var err error
				for rest := test.reply; rest != "" && err == nil; rest = rest[min(step, len(rest)):] {
					_, err = c.Received([]byte(rest[:min(step, len(rest))]))
				}
				if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.reason) {
					t.Fatalf("in pieces of %d bytes: %v, want ErrInvalid with %q", step, err, test.reason)
				}
				if _, again := c.Received([]byte("+OK\r\n")); !errors.Is(again, err) {
					t.Fatalf("later: %v, want the same error", again)
				}
			}
		})
	}
}

// TestValidRepliesPass has the replies of servers that the rules above could meet.
func TestValidRepliesPass(t *testing.T) {
	t.Parallel()
	hello := "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n255.255\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:10\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n" +
		"$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*1\r\n%2\r\n$4\r\nname\r\n$1\r\na\r\n$4\r\nargs\r\n*1\r\n+x\r\n"
	hello = strings.ReplaceAll(hello, "$6\r\n255.255", "$7\r\n255.255")
	for _, test := range []struct{ name, command, reply string }{
		{"login", "PING\nHELLO 3\nSELECT 1", "-NOAUTH Authentication required.\r\n" + hello + "+OK\r\n"},
		{"scripts", "EVALSHA a\nEVALSHA a\nEVALSHA a", "$0\r\n\r\n$5\r\n\r\n$-1\r\n-NOSCRIPT No matching script.\r\n"},
		{"nulls", "GET a\nGET a\nGET a", "$-1\r\n*-1\r\n_\r\n"},
		{"numbers", "GET a\nGET a\nGET a\nGET a\nGET a", ":-9223372036854775808\r\n:9223372036854775807\r\n,-inf\r\n(123456789012345678901234567890\r\n#t\r\n"},
		{"other types", "INFO\nGET a\nGET a\nGET a", "=8\r\ntxt:a\r\nb\r\n~2\r\n+a\r\n+b\r\n!3\r\nERR\r\n*0\r\n"},
		{"a carriage return in an error", "GET a", "-ERR a\rb\r\r\n"},
		{"redirections", "EVALSHA a\nEVALSHA a", "-MOVED 3999 127.0.0.1:6381\r\n-ASK 3999 127.0.0.1:6381\r\n"},
		{"a redirection of Valkey, which rueidis does not follow", "EVALSHA a\nEVALSHA a", "-REDIRECT 127.0.0.1:6381\r\n-REDIRECT\r\n"},
		{"pushes between replies", "GET a\nGET a", "+a\r\n>2\r\n+invalidate\r\n*1\r\n+k\r\n>1\r\n+x\r\n+b\r\n>2\r\n+unknown\r\n:1\r\n"},
		{"an unsubscribe by Redis itself", "", confirmations("sunsubscribe", 2)},
		{"a PING with a text", "PING abc\nPING abc\nGET a", "$3\r\nabc\r\n-LOADING\r\n+a\r\n"},
		{"RESP2", "HELLO 3\nHELLO 2\nPING\nCLUSTER SLOTS", "-ERR unknown command `HELLO`\r\n*2\r\n+server\r\n+redis\r\n+PONG\r\n*0\r\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for step := 1; step <= len(test.reply); step++ {
				var c Checker
				if sent := write(strings.Split(test.command, "\n")...); test.command != "" {
					for ; len(sent) > 0; sent = sent[min(step, len(sent)):] {
						must.Do(t, c.Sent(sent[:min(step, len(sent))]))
					}
				}
				for rest := test.reply; rest != ""; rest = rest[min(step, len(rest)):] {
					piece := rest[:min(step, len(rest))]
					if n, err := c.Received([]byte(piece)); n != len(piece) || err != nil {
						t.Fatalf("in pieces of %d bytes: %d of %q, %v; %q left", step, n, piece, err, rest)
					}
				}
				if n := c.Waiting(); n != 0 {
					t.Fatalf("in pieces of %d bytes: %d commands without a reply", step, n)
				}
			}
		})
	}
}

// TestRepliesBeforeAnInvalidOnePass: requests that Redis has answered are not lost.
func TestRepliesBeforeAnInvalidOnePass(t *testing.T) {
	t.Parallel()
	var c Checker
	must.Do(t, c.Sent(write("GET a", "GET a")))
	valid := "+a\r\n>2\r\n+x\r\n+y\r\n"
	if n, err := c.Received([]byte(valid + "*2\r\n+b\r\n$-5\r\n")); n != len(valid) || !errors.Is(err, ErrInvalid) {
		t.Errorf("%d bytes and %v, want %d and ErrInvalid", n, err, len(valid))
	}
}

// TestAFragmentedClusterFits: each of the 16 384 slots is on its own, with three nodes.
func TestAFragmentedClusterFits(t *testing.T) {
	t.Parallel()
	node := "*4\r\n$9\r\n127.0.0.1\r\n:6379\r\n$40\r\n" + strings.Repeat("a", 40) + "\r\n*2\r\n$8\r\nhostname\r\n$30\r\n" + strings.Repeat("h", 30) + "\r\n"
	reply := []byte("*16384\r\n" + strings.Repeat("*5\r\n:1\r\n:1\r\n"+node+node+node, 16384))
	var c Checker
	must.Do(t, c.Sent(write("CLUSTER SLOTS")))
	if n, err := c.Received(reply); n != len(reply) || err != nil {
		t.Errorf("%d of %d bytes, %v", n, len(reply), err)
	}
}

// Weir subscribes to nothing, so that no reply to a subscription has a rule.
func TestCommandsThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"PING\r\n", "*0\r\n", "*1\r\n:1\r\n", "*a\r\n", "*1\r\n$-1\r\n", "*99999999999\r\n", "$4\r\nPING\r\n", "*1\r\n*1\r\n", "*2\r\n$10\r\nPSUBSCRIBE\r\n$1\r\na\r\n"} {
		var c Checker
		if err := c.Sent([]byte(text)); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%q: %v, want ErrUnsupported", text, err)
		}
	}
}
