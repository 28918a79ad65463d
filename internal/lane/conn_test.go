package lane

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
)

func TestAWholeRequestIsAnsweredInPlace(t *testing.T) {
	c := newTalk(t)
	for _, id := range []uint32{1, 3, 7} {
		c.ask(id, "hello")
	}
	got := must.Get(c.send())(t)
	var want []string
	for _, id := range []string{"1", "3", "7"} {
		want = append(want, id+" HEADERS :status=200 content-type=application/grpc", id+` DATA "\x00\x00\x00\x00\x05hello"`,
			id+" HEADERS grpc-status=0 END")
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if c.conn.Streams() != 0 || c.conn.Answered() != 3 || c.conn.Held() != 0 {
		t.Errorf("got %d streams, %d answered, %d bytes held, want 0, 3, 0", c.conn.Streams(), c.conn.Answered(), c.conn.Held())
	}
}

func TestTheFirstOutputIsThePrefaceOfTheServer(t *testing.T) {
	c := newClient(t)
	conn := newLane(t).Open(start, echo{}, nil, 0)
	want := []string{
		"SETTINGS [MAX_FRAME_SIZE = 16384] [MAX_CONCURRENT_STREAMS = 1024] [INITIAL_WINDOW_SIZE = 65536] [MAX_HEADER_LIST_SIZE = 16384]",
		"0 WINDOW_UPDATE 983041",
	}
	if d := cmp.Diff(want, c.read(conn.Output())); d != "" {
		t.Error(d)
	}
}

func TestWrongOptionsAreRefusedAllAtOnce(t *testing.T) {
	_, err := New(Options{Path: "Check", MaxMessage: -1, MaxStreams: 1<<20 + 1, MaxInPlace: 1 << 20})
	for _, want := range []string{
		`path: "Check": must be /package.Service/Method`, "max message: -1: must be from 1 to 1073741824",
		"max streams: 1048577: must be from 1 to 1048576", "max in place: 1048576: must be from 1 to 16384",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Std: []string{
			"bytes", "cmp", "encoding/base64", "encoding/binary", "errors", "fmt", "math", "slices", "strconv", "strings", "sync", "time",
			"unicode/utf8",
		},
		Third: []string{"golang.org/x/net/http/httpguts", "golang.org/x/net/http2/hpack"},
	})
}
