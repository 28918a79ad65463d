package hostile

import (
	"bytes"
	"context"
	"io"
	"net"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
)

// heldStreams is the reason why grpc-go loses where streams wait.
const heldStreams = "grpc-go keeps about 10 KB for each stream that waits for its message, with no bound over all connections"

// unreadAnswers is the reason why grpc-go loses. grpc-go keeps the answers that a client does not
// read, on each connection up to its bound of streams.
const unreadAnswers = "answers that nobody reads have no bound over all connections"

// slowAttacks are peers that take no answers, or give and take a byte a second.
func slowAttacks() []attack {
	return []attack{
		{
			name:  "unread_answers",
			grpc:  unreadAnswers,
			how:   "20 connections send requests of 1000 descriptors and read nothing",
			bound: "1024 streams of a connection, `--max-bytes-in-flight`",
			run:   func(a *assault) { unread(a, 20, false) },
		},
		{
			name:  "window_zero",
			grpc:  unreadAnswers,
			how:   "20 connections send requests of 1000 descriptors and never open their window for the answers",
			bound: "1024 streams of a connection, `--max-bytes-in-flight`",
			run:   func(a *assault) { unread(a, 20, true) },
		},
		{
			name:  "unread_answers_on_many_connections",
			grpc:  unreadAnswers,
			how:   "500 connections send requests of 1000 descriptors and read nothing",
			bound: "`--max-connections`, 1024 streams of a connection, `--max-bytes-in-flight`",
			run:   func(a *assault) { unread(a, 500, false) },
		},
		{
			name:  "window_zero_on_many_connections",
			grpc:  unreadAnswers,
			how:   "500 connections send requests of 1000 descriptors and never open their window for the answers",
			bound: "`--max-connections`, 1024 streams of a connection, `--max-bytes-in-flight`",
			run:   func(a *assault) { unread(a, 500, true) },
		},
		{
			name:  "slow_writers",
			grpc:  heldStreams,
			how:   "100 connections with 100 streams send a byte of their message each second",
			bound: "1024 streams of a connection, `--max-bytes-in-flight`",
			run: func(a *assault) {
				body := a.encode(request(1, entry{"far", "slow"}))
				a.calls(100, 100, method, func(ctx context.Context) io.Reader { return &drip{ctx, bytes.NewReader(body)} })
			},
		},
		{
			name:  "slow_readers",
			grpc:  unreadAnswers,
			how:   "100 connections send requests of 1000 descriptors and read a byte each second",
			bound: "1024 streams of a connection, `--max-bytes-in-flight`",
			run:   slowReaders,
		},
		{
			name:  "window_zero_of_reflection",
			grpc:  unreadAnswers,
			how:   "200 connections ask reflection for 70 KB of descriptors on 20 streams each, and never open their window for the answers",
			bound: "`--max-bytes-in-flight`",
			run:   unreadReflection,
		},
		{
			name:  "unread_answers_in_the_kernel",
			grpc:  unreadAnswers,
			how:   "990 connections ask reflection for 280 KB of descriptors each, one after the other, and read nothing",
			bound: "16 KiB of answers in the buffer of a socket",
			run:   leaveAnswers,
		},
		{
			name:  "reset_answers_of_reflection",
			grpc:  unreadAnswers,
			how:   "100 connections ask reflection for 70 KB on 60 streams at once, read nothing and reset all, three times",
			bound: "`--max-bytes-in-flight`",
			run:   resetAnswers,
		},
	}
}

// unread sends requests without end on each connection and takes no answer. With closed, the window
// of every stream is shut; without, nobody reads the connection.
func unread(a *assault, conns int, closed bool) {
	body := a.thousand(0, 10)
	a.repeat(conns, func(ctx context.Context) error {
		var settings []http2.Setting
		if closed {
			settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		}
		p, err := a.raw(ctx, settings...)
		if err != nil {
			return err
		}
		if closed {
			p.discard()
		}
		return a.insist(ctx, p, body)
	})
}

// insist sends whole requests without end.
func (a *assault) insist(ctx context.Context, p *peer, body []byte) error {
	for ctx.Err() == nil {
		a.attempts.Add(1)
		if err := p.send(body); err != nil {
			return err
		}
	}
	return nil
}

func slowReaders(a *assault) {
	body := a.thousand(0, 10)
	a.repeat(100, func(ctx context.Context) error {
		p, err := a.raw(ctx)
		if err != nil {
			return err
		}
		if tcp, isTCP := p.Conn.(*net.TCPConn); isTCP {
			if err := tcp.SetReadBuffer(4 << 10); err != nil {
				return err
			}
		}
		go func() {
			one := make([]byte, 1)
			for ctx.Err() == nil {
				if _, err := p.Read(one); err != nil {
					return
				}
				a.pause(time.Second)
			}
		}()
		return a.insist(ctx, p, body)
	})
}

// askReflection returns a request for 70 KB of descriptors.
func (a *assault) askReflection() []byte {
	message, err := proto.Marshal(&reflectiongrpc.ServerReflectionRequest{MessageRequest: &reflectiongrpc.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: ratelimitv3.RateLimitService_ServiceDesc.ServiceName,
	}})
	a.fail(err)
	return frame(message, false)
}

// ask sends so many whole requests at once.
func (a *assault) ask(p *peer, body []byte, times int) error {
	for range times {
		a.attempts.Add(1)
		if err := p.send(body); err != nil {
			return err
		}
	}
	return p.out.Flush()
}

func unreadReflection(a *assault) {
	body := a.askReflection()
	a.repeat(200, func(ctx context.Context) error {
		p, err := a.raw(ctx, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		if err != nil {
			return err
		}
		p.path = reflection
		if err := a.ask(p, body, 20); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, p.Conn)
		return err
	})
}

// wide opens a connection whose windows take a gigabyte of answers.
func (a *assault) wide(ctx context.Context) (*peer, error) {
	p, err := a.raw(ctx, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	if err != nil {
		return nil, err
	}
	p.path = reflection
	return p, p.WriteWindowUpdate(0, 1<<30)
}

// leaveAnswers asks slowly for so many bytes that the buffers of the kernel hold all answers. Then
// no request is in flight.
func leaveAnswers(a *assault) {
	body := a.askReflection()
	turns := make(chan struct{}, 2) // more at once would fill the bound of bytes in flight
	a.repeat(990, func(ctx context.Context) error {
		p, err := a.wide(ctx)
		if err != nil {
			return err
		}
		turns <- struct{}{}
		for range 4 {
			if err = a.ask(p, body, 1); err != nil {
				break
			}
			a.pause(5 * time.Millisecond)
		}
		<-turns
		<-ctx.Done()
		return err
	})
}

// resetAnswers resets streams before the server has waited so long for the client that more bytes
// count.
func resetAnswers(a *assault) {
	body := a.askReflection()
	turns := make(chan struct{}, 1)
	a.repeat(100, func(ctx context.Context) error {
		p, err := a.wide(ctx)
		if err != nil {
			return err
		}
		turns <- struct{}{}
		err = a.ask(p, body, 1) // the Write of its answer waits
		for range 3 {
			if err != nil {
				break
			}
			a.pause(5 * time.Millisecond)
			err = resetSixty(a, p, body)
		}
		<-turns
		<-ctx.Done()
		return err
	})
}

func resetSixty(a *assault, p *peer, body []byte) error {
	begun := p.stream
	if err := a.ask(p, body, 60); err != nil {
		return err
	}
	a.pause(18 * time.Millisecond)
	return p.reset(begun + 2)
}
