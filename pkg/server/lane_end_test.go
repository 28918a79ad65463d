package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/testing/metricstest"
)

func TestConnectionsThatTheLaneEndsAreCounted(t *testing.T) {
	for reason, test := range map[string]struct {
		attack func(c *frames) error
		after  time.Duration
	}{
		"protocol_error": {func(c *frames) error { return c.WriteRawFrame(http2.FramePing, 0, 1, make([]byte, 8)) }, 0},
		"bad_frames": {func(c *frames) (err error) {
			for range 4 {
				err = errors.Join(err, c.WritePing(false, [8]byte{}))
			}
			return err
		}, 0},
		"slow_message": {func(c *frames) error { return c.call(1, false) }, lane.MessageTimeout + 2*time.Second},
		"silent":       {func(c *frames) error { return c.call(1, true) }, lane.KeepaliveTime + lane.KeepaliveTimeout + 2*time.Second},
		"unread_answers": {func(c *frames) (err error) {
			err = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			for id := uint32(1); id < 100 && err == nil; id += 2 {
				err = errors.Join(c.call(id, false), c.WriteData(id, true, message(asking(1000))))
			}
			return err
		}, time.Second},
	} {
		t.Run(reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, everything, func(o *Options) { o.MaxBytesInFlight = 1 << 30 })
				if f.server.lane == nil {
					t.Skip("gRPC's library counts no ends")
				}
				name := fmt.Sprintf("weir_in_flight_connections_ended_total{reason=%q}", reason)
				c := dialFrames(t, f.server.Serve, 1<<20)
				go c.drain()
				if err := test.attack(c); err != nil {
					t.Log(err) // the connection may have ended
				}
				time.Sleep(test.after)
				synctest.Wait()
				for series, n := range metricstest.Gather(t, f.registry, "weir_in_flight_connections_ended") {
					if want := map[bool]float64{true: 1}[series == name]; n != want {
						t.Errorf("%s: got %v, want %v", series, n, want)
					}
				}
				if log := f.logs.String(); !strings.Contains(log, "a connection was ended") || !strings.Contains(log, "reason="+reason) {
					t.Errorf("the log has no end of the connection: %s", log)
				}
			})
		})
	}
}
