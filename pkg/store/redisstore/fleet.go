package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// fleet counts the processes that share the main server under one prefix. Each process calls a
// script about every fleetBeat. The script counts each process once in each epoch of Redis's time.
// One key suffices, and a call costs the same for any number of processes. A process that Redis has
// not heard for three epochs is not counted. Redis can run a call long after the process has given
// the call up, so a call carries a deadline.
type fleet struct {
	server *server
	script *rueidis.Lua
	begun  chan struct{} // closed after the first beat, also one that failed

	wasReset func() // is called after a reset by another process

	// Of the goroutine of run.
	first, last int64  // epochs in which this process was counted without a gap; 0: none
	refused     bool   // the last error was logged
	reset       string // the last known value of resets
	looked      bool   // for resets
	ahead       int64  // microseconds that the clock of Redis was ahead of the time since the start of the store; 0: not known
}

const (
	fleetBeat  = time.Second
	fleetEpoch = 2500 * time.Millisecond // more than two beats: a late one does not matter
	fleetLeave = 500 * time.Millisecond  // for the last call
)

func newFleet(s *server) (*fleet, error) {
	text, err := scriptParts.ReadFile("script/fleet.lua")
	if err != nil {
		return nil, err
	}
	return &fleet{server: s, script: rueidis.NewLuaScript(string(text)), begun: make(chan struct{})}, nil
}

// run makes this process known until ctx ends, and then takes it out. The first beat comes as soon
// as there is a connection.
func (f *fleet) run(ctx context.Context) {
	_ = f.server.connection.Await(ctx) // the connection logs why
	tick := time.NewTicker(fleetBeat)
	defer tick.Stop()
	for begun := sync.OnceFunc(func() { close(f.begun) }); ; {
		f.beat(ctx, false)
		begun()
		select {
		case <-tick.C:
		case <-ctx.Done():
			if f.last > 0 {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fleetLeave)
				defer cancel()
				f.beat(ctx, true)
			}
			return
		}
	}
}

func (f *fleet) beat(ctx context.Context, leaves bool) {
	ctx, cancel := context.WithTimeout(ctx, fleetBeat)
	defer cancel()
	connection := f.server.connection
	client, err := f.server.client()
	if err != nil {
		return // the connection logs why
	}
	begun := time.Since(f.server.pulse.started).Microseconds()
	deadline := int64(0)
	if f.ahead != 0 && f.server.given == nil {
		deadline = f.ahead + begun + fleetBeat.Microseconds()
	}
	left := int64(0)
	if leaves {
		left = 1
	}
	var args []string
	for _, n := range []int64{f.server.givenNow(), fleetEpoch.Microseconds(), f.first, f.last, left, deadline} {
		args = append(args, strconv.FormatInt(n, 10))
	}
	counts, err := f.script.Exec(ctx, client, []string{f.server.prefix + "fleet"}, args).AsIntSlice()
	if err = connection.Report(err); err == nil && len(counts) != 5 {
		err = errReply
	}
	if err != nil {
		f.failed(err)
		return
	}
	f.refused = false
	f.lookForResets(ctx, client)
	f.ahead = counts[4] - begun
	switch late := deadline > 0 && counts[4] >= deadline; {
	case leaves:
	case late: // the clock of Redis has jumped ahead, so the next beat counts
		f.last = 0
	default:
		f.heard(counts[0], [3]int64(counts[1:4]))
	}
}

// lookForResets finds resets by other processes. A server without the key may have lost it.
func (f *fleet) lookForResets(ctx context.Context, client rueidis.Client) {
	is, err := client.Do(ctx, client.B().Get().Key(f.server.prefix+resets).Build()).ToString()
	switch {
	case err != nil && !rueidis.IsRedisNil(err):
		return
	case err == nil && is != f.reset:
		f.reset = is
		if f.looked {
			f.wasReset()
		}
	}
	f.looked = true
}

// heard notes an answer: the processes counted in an epoch, with this one, in the epoch before, and
// in the one before that. After a gap, or a loss of the key, the others may not have been counted
// again before the end of the next epoch.
func (f *fleet) heard(epoch int64, counts [3]int64) {
	gap := f.last == 0 || epoch != f.last && epoch != f.last+1
	lost := counts[0] == 0 || counts[1] == 0 && f.first < epoch && epoch <= f.last+1
	if gap || lost {
		f.first = epoch
	}
	if f.last = epoch; counts[0] == 0 {
		f.last = 0 // has this process counted again
	}
	size := max(counts[0], counts[1], counts[2])
	if epoch-f.first < 2 {
		size = max(size, f.server.processes.Load())
	} else {
		f.server.assumed.Store(0)
	}
	f.server.processes.Store(size)
}

// failed logs a refusal of Redis, and not again before a call that succeeds. The rest of the store
// says when Redis is away.
func (f *fleet) failed(err error) {
	if _, is := rueidis.IsRedisErr(err); !is || f.refused || unapplied(err) {
		return
	}
	f.refused = true
	f.server.logger.LogAttrs(context.Background(), slog.LevelWarn,
		"cannot count the processes that share Redis: while Redis does not answer, each may admit more than its part",
		slog.Any("redis", f.server.target), slog.Int("known", f.server.fleetSize()), slog.String("error", fmt.Sprint(err)))
}
