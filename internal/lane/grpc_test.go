package lane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // as tracing registers it
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/must"
)

// raw is a codec of messages that are bytes.
type raw struct{}

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, errors.New("not a *[]byte")
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return errors.New("not a *[]byte")
	}
	*b = data.Materialize()
	return nil
}

// Name implements [encoding.CodecV2].
func (raw) Name() string { return "raw" }

// newServer returns a server of grpc-go with the options of Weir, that answers as the handler of
// tests does.
func newServer(tb testing.TB, o Options) *grpc.Server {
	tb.Helper()
	s := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.MaxRecvMsgSize(o.MaxMessage), grpc.MaxHeaderListSize(16<<10),
		grpc.MaxConcurrentStreams(1024), grpc.InitialWindowSize(64<<10), grpc.InitialConnWindowSize(1<<20))
	check := func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		stream, _ := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
		if name := stream.RecvCompress(); name != "" && name != "identity" {
			return nil, status.Errorf(codes.Unimplemented,
				"grpc-encoding %q: compressed requests are refused, send them without compression", name)
		}
		var message []byte
		if err := dec(&message); err != nil {
			return nil, err
		}
		response, reply := new(handler).Answer(&Call{Large: len(message) > o.MaxInPlace, head: new(head)}, message, nil)
		if reply.Later {
			response = []byte("at last")
		}
		if reply.Code != 0 {
			return nil, failure().Err()
		}
		return &response, nil
	}
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Limits", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Check", Handler: check}},
	}, nil)
	tb.Cleanup(s.Stop)
	return s
}

// connections is a listener with connections that tests make.
type connections chan net.Conn

func (l connections) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l connections) Close() error   { close(l); return nil }
func (l connections) Addr() net.Addr { return &net.UnixAddr{Name: "test", Net: "unix"} }

// answers are the frames of a server on each stream: header fields, DATA, and the end.
type answers map[uint32]string

// collect adds the frames of a server to the answers, until done says so.
func (a answers) collect(r io.Reader, done func() bool) (goAway string, err error) {
	framer := http2.NewFramer(nil, r)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for !done() {
		f, err := framer.ReadFrame()
		if err != nil {
			return goAway, err
		}
		id := f.Header().StreamID
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				if h.Name != "grpc-message" || h.Value != "" {
					a[id] += h.Name + "=" + h.Value + "\n"
				}
			}
			if f.StreamEnded() {
				a[id] += "END"
			}
		case *http2.DataFrame:
			a[id] += fmt.Sprintf("%q\n", f.Data())
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeNo {
				a[id] += fmt.Sprint("RST_STREAM ", f.ErrCode)
			}
		case *http2.GoAwayFrame:
			goAway = f.ErrCode.String()
		}
	}
	return goAway, nil
}

func (a answers) complete(id uint32) bool {
	return strings.HasSuffix(a[id], "END") || strings.Contains(a[id], "RST_STREAM")
}

// Conversations with the lane and with grpc-go's server have the same answers on every stream.
func TestAnswersAreThoseOfAnotherServer(t *testing.T) {
	l := newLane(t, small)
	server := newServer(t, l.options)
	listener := make(connections)
	go func() { _ = server.Serve(listener) }()
	kinds := make(map[string]int)
	for seed := range seeds(t, 150) {
		c := newConversation(t, seed, true)
		sent := c.write(1 + c.r.IntN(10))
		out := must.Get(play(t, l, cut(c.r, sent)))(t)
		got := make(answers)
		if _, err := got.collect(bytes.NewReader(out), func() bool { return false }); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		listener <- far
		go func() { _, _ = near.Write(sent) }()
		_ = near.SetReadDeadline(time.Now().Add(time.Minute))
		want := make(answers)
		_, err := want.collect(near, func() bool {
			for _, id := range c.ids {
				if !want.complete(id) {
					return false
				}
			}
			return true
		})
		if err != nil {
			t.Fatalf("seed %d: grpc-go: %v\n%v\n%s", seed, err, want, cmp.Diff(want, got))
		}
		_ = near.Close()
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		for _, text := range got {
			kinds[text]++
		}
	}
	if len(kinds) < 30 {
		t.Errorf("only %d kinds of answers were compared", len(kinds))
	}
}
