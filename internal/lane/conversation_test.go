package lane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
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

// conversation writes the bytes of a client on one connection: requests of all kinds, with frames
// of their streams mixed.
type conversation struct {
	*client
	r       *rand.Rand
	ids     []uint32
	pending [][]func() // frames that are still to come, of each open request
	pings   int
	strict  bool // only requests that grpc-go answers in one way
}

func newConversation(tb testing.TB, seed uint64, strict bool) *conversation {
	tb.Helper()
	return &conversation{client: newClient(tb), r: rand.New(rand.NewPCG(seed, 2)), strict: strict}
}

// message returns a message of any kind for the handler of tests.
func (c *conversation) message() string {
	words := []string{"", "hello", "fail", strings.Repeat("x", c.r.IntN(900)), "hello", "hello", "later"}
	if c.strict {
		words = words[:6]
	}
	return words[c.r.IntN(len(words))]
}

// fields returns the header fields of a request, with a mistake in some.
func (c *conversation) fields() []string {
	mistakes := [][]string{
		{"content-type", "application/grpc+proto"},
		{"content-type", "application/grpc;x"},
		{"content-type", "text/plain"},
		{"content-type", ""},
		{":method", "GET"},
		{"grpc-timeout", "1"},
		{"grpc-timeout", "0m"},
		{"grpc-timeout", "12x"},
		{"grpc-timeout", "123456789S"},
		{"grpc-timeout", "-1S"},
		{"grpc-timeout", "99999999H"},
		{":authority", ""},
		{":authority", "", "host", "limits"},
		{"host", "limits"},
		{"host", "a", "+host", "b"},
		{":authority", "", "host", "a", "+host", "b"},
		{"x-bin", "AAE="},
		{"x-bin", "AAA"},
		{"x-bin", "A*A"},
		{"grpc-encoding", "gzip"},
		{"grpc-encoding", "identity"},
		{"connection", "close"},
		{"X-Upper", "no"},
		{"x-value", "a\x00b"},
		{"x-large", strings.Repeat("y", 9000), "x-larger", strings.Repeat("z", 9000)},
		{":late", "pseudo"},
		{"grpc-accept-encoding", "identity,gzip"},
		{"user-agent", "a test"},
		{"x-trace", fmt.Sprint(c.r.Uint64())},
	}
	if c.r.IntN(3) > 0 {
		return usual("grpc-timeout", fmt.Sprint(1+c.r.IntN(3), "M"))
	}
	return usual(append([]string{"grpc-timeout", "1H"}, mistakes[c.r.IntN(len(mistakes))]...)...)
}

// payload returns the DATA of a request, with a mistake in some.
func (c *conversation) payload() []byte {
	whole := prefixed(c.message())
	switch c.r.IntN(12) {
	case 0:
		whole[0] = byte(c.r.IntN(3))
	case 1:
		return append(whole, prefixed(c.message())...)
	case 2:
		return whole[:c.r.IntN(len(whole))]
	case 3:
		return prefixed(strings.Repeat("z", 1001+c.r.IntN(3000)))
	case 4:
		if !c.strict {
			return prefixed(strings.Repeat("later", 100))
		}
	}
	return whole
}

// request plans the frames of one request.
func (c *conversation) request(id uint32) []func() {
	fields, payload := c.fields(), c.payload()
	frames := []func(){func() { c.cutHeaders(id, fields) }}
	for len(payload) > 0 && c.r.IntN(3) == 0 {
		n := 1 + c.r.IntN(len(payload))
		piece, padding := payload[:n], make([]byte, c.r.IntN(2)*c.r.IntN(20))
		payload = payload[n:]
		frames = append(frames, func() { c.must(c.framer.WriteDataPadded(id, false, piece, padding)) })
	}
	frames = append(frames, func() { c.must(c.framer.WriteData(id, true, payload)) })
	if !c.strict && c.r.IntN(6) == 0 {
		frames = slices.Insert(frames, 1+c.r.IntN(len(frames)), func() { c.must(c.framer.WriteRSTStream(id, http2.ErrCodeCancel)) })
	}
	return frames
}

// cutHeaders writes HEADERS, and CONTINUATION in some cases. A block that is larger than a frame
// needs it.
func (c *conversation) cutHeaders(id uint32, fields []string) {
	block := c.block(fields...)
	n := min(len(block), maxFrame)
	if c.r.IntN(4) == 0 {
		n = c.r.IntN(n)
	}
	p := http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block)}
	if c.r.IntN(4) == 0 {
		p.Priority = http2.PriorityParam{StreamDep: 0, Weight: 15}
		p.PadLength = uint8(c.r.IntN(30))
	}
	if len(p.BlockFragment)+40 > maxFrame {
		p.Priority, p.PadLength = http2.PriorityParam{}, 0
	}
	c.must(c.framer.WriteHeaders(p))
	if n < len(block) {
		c.must(c.framer.WriteContinuation(id, true, block[n:]))
	}
}

// other writes a frame that belongs to no request.
func (c *conversation) other() {
	switch c.r.IntN(7) {
	case 0:
		if c.pings++; c.pings < 3 { // more are a flood
			c.must(c.framer.WritePing(false, [8]byte{1, 2, 3}))
		}
	case 1:
		c.must(c.framer.WriteWindowUpdate(0, uint32(1+c.r.IntN(100))))
	case 2:
		c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(60000 + c.r.IntN(10000))}))
	case 3:
		c.must(c.framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(c.r.IntN(5000))}))
	case 4:
		c.must(c.framer.WriteRawFrame(0xfa, 0, c.r.Uint32N(9), []byte("unknown")))
	case 5:
		c.must(c.framer.WritePriority(c.r.Uint32N(9)*2+1, http2.PriorityParam{Weight: 3}))
	case 6:
		c.must(c.framer.WriteSettingsAck())
	}
}

// write writes a whole conversation and returns its bytes.
func (c *conversation) write(requests int) []byte {
	c.greet(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	next := uint32(1)
	for len(c.pending) > 0 || requests > 0 {
		switch {
		case c.r.IntN(6) == 0:
			c.other()
		case requests > 0 && (len(c.pending) == 0 || c.r.IntN(3) == 0):
			c.ids = append(c.ids, next)
			frames := c.request(next)
			if c.r.IntN(2) == 0 { // all at once
				for _, f := range frames {
					f()
				}
			} else {
				frames[0]() // streams begin in their order
				c.pending = append(c.pending, frames[1:])
			}
			requests--
			next += 2 * (1 + c.r.Uint32N(2))
		default:
			i := c.r.IntN(len(c.pending))
			c.pending[i][0]()
			if c.pending[i] = c.pending[i][1:]; len(c.pending[i]) == 0 {
				c.pending = slices.Delete(c.pending, i, i+1)
			}
		}
	}
	return c.take()
}

// small is the options of conversations.
func small(o *Options) { o.MaxMessage, o.MaxInPlace = 1000, 400 }

// play gives the bytes to a new connection in pieces, and returns all that the connection sends.
// Calls that wait are finished in the end.
func play(tb testing.TB, l *Lane, pieces [][]byte) ([]byte, error) {
	tb.Helper()
	h := new(handler)
	conn := l.Open(start, h, nil, 0)
	var out []byte
	var err error
	for _, piece := range pieces {
		err = conn.receiveAll(piece, start)
		out = append(out, conn.Output()...)
		if err != nil {
			break
		}
	}
	for _, id := range h.calls {
		_ = conn.Finish(id, []byte("at last"), Reply{}, start)
	}
	checkCounts(tb, conn)
	return append(out, conn.Output()...), err
}

// checkCounts compares the counts of a connection with its streams.
func checkCounts(tb testing.TB, c *Conn) {
	tb.Helper()
	want := streams{byID: c.opened.byID, most: c.opened.most}
	for _, s := range c.opened.byID {
		want.heads += s.head.size()
		want.messages += len(s.message.bytes)
		want.queued += len(s.queue) - s.sent
		if s.gone {
			want.gone++
			continue
		}
		want.open++
		if !s.ended && (!s.foreign || s.incomplete) {
			want.incomplete++
		}
	}
	if d := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", c.opened)); d != "" {
		tb.Errorf("the counts of streams are wrong: %s", d)
	}
}

// cut cuts bytes at random places.
func cut(r *rand.Rand, b []byte) [][]byte {
	var pieces [][]byte
	most := []int{1, 3, 20, 200, 5000}[r.IntN(5)]
	for len(b) > 0 {
		n := min(1+r.IntN(most), len(b))
		pieces = append(pieces, bytes.Clone(b[:n]))
		b = b[n:]
	}
	return pieces
}

func TestBytesCutAnywhereMeanTheSame(t *testing.T) {
	answered := 0
	l := newLane(t, small)
	for seed := range seeds(t, 150) {
		c := newConversation(t, seed, false)
		sent := c.write(1 + c.r.IntN(30))
		want, wantErr := play(t, l, [][]byte{sent})
		for range 3 {
			got, err := play(t, l, cut(c.r, sent))
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("seed %d: cut: got error %v, want %v", seed, err, wantErr)
			}
			if !bytes.Equal(got, want) {
				reader := newClient(t)
				whole := reader.read(want)
				reader = newClient(t)
				t.Fatalf("seed %d: whole and cut differ:\n%s", seed, cmp.Diff(whole, reader.read(got)))
			}
		}
		if frames := newClient(t).read(want); wantErr == nil {
			ended := 0
			for _, text := range frames {
				if strings.HasSuffix(text, " END") || strings.Contains(text, "RST_STREAM") && !strings.HasSuffix(text, " NO_ERROR") {
					ended++
				}
			}
			answered += ended
		}
		if wantErr != nil {
			t.Fatalf("seed %d: a valid conversation ended with %v", seed, wantErr)
		}
	}
	if answered < 1500 {
		t.Errorf("only %d requests were answered", answered)
	}
}

func FuzzBytes(f *testing.F) {
	for seed := range uint64(20) {
		c := newConversation(f, seed, false)
		f.Add(c.write(3)[len(preface):], seed)
	}
	l := newLane(f, small)
	f.Fuzz(func(t *testing.T, sent []byte, seed uint64) {
		playCut(t, l, append([]byte(preface), sent...), rand.New(rand.NewPCG(seed, 3)))
	})
}

// playCut plays the bytes whole and cut, and compares the outputs.
func playCut(t *testing.T, l *Lane, sent []byte, r *rand.Rand) {
	t.Helper()
	want, wantErr := play(t, l, [][]byte{sent})
	got, err := play(t, l, cut(r, sent))
	if fmt.Sprint(err) != fmt.Sprint(wantErr) || !bytes.Equal(got, want) {
		t.Errorf("whole: %x, %v\ncut: %x, %v", want, wantErr, got, err)
	}
	newClient(t).read(want) // frames, and header blocks of HPACK
}

// FuzzFrames makes frames of the bytes, so that more of them get behind the checks of a frame's
// head.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 1, 5, 1, 4, 9, 9, 9, 9})
	l := newLane(f, small)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newConversation(t, uint64(len(b)), false)
		sent := c.write(2)
		for len(b) > 4 {
			n := min(int(b[0]), len(b)-4)
			sent = append(appendFrame(sent, n, b[1]%11, b[2], uint32(b[3]%16)), b[4:4+n]...)
			b = b[4+n:]
		}
		playCut(t, l, sent, c.r)
	})
}

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
