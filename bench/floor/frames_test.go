package main

import (
	"bytes"
	"testing"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/bench/drive"
)

func TestEachRequestIsAnsweredOnceHoweverItIsCut(t *testing.T) {
	a, err := newAnswer(drive.Constant())
	if err != nil {
		t.Fatal(err)
	}
	var in bytes.Buffer
	in.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&in, nil)
	for _, write := range []func() error{
		func() error { return framer.WriteSettings() },
		func() error {
			return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x83}, EndHeaders: true})
		},
		func() error { return framer.WriteData(1, true, make([]byte, 40)) },
		func() error { return framer.WritePing(false, [8]byte{7}) },
		func() error {
			return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x83}, EndHeaders: true, EndStream: true})
		},
	} {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	for most := 1; most <= in.Len(); most++ {
		var m machine
		var partial, out []byte
		for rest := in.Bytes(); len(rest) > 0; rest = rest[min(most, len(rest)):] {
			partial = append(partial, rest[:min(most, len(rest))]...)
			taken, more, err := m.receive(partial, out, &a)
			if err != nil {
				t.Fatal(err)
			}
			partial, out = partial[taken:], more
		}
		var got []http2.FrameHeader
		for reader := http2.NewFramer(nil, bytes.NewReader(out)); ; {
			frame, err := reader.ReadFrame()
			if err != nil {
				break
			}
			h := frame.Header()
			got = append(got, http2.FrameHeader{Type: h.Type, Flags: h.Flags, StreamID: h.StreamID})
		}
		if len(got) != 8 || got[1].StreamID != 1 || got[2].StreamID != 1 || got[3].StreamID != 1 || got[4].Type != http2.FramePing ||
			got[5].StreamID != 3 || got[6].StreamID != 3 || got[7].StreamID != 3 {
			t.Fatalf("cut into %d bytes: got the frames %v; want a SETTINGS, an answer, a PING and an answer", most, got)
		}
	}
}

func TestAClientThatDoesNotSpeakHTTP2IsRefused(t *testing.T) {
	var m machine
	if _, _, err := m.receive([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), nil, &answer{}); err == nil {
		t.Error("got no error")
	}
}
