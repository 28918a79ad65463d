package redisstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/pkg/store"
)

// fleet makes this process known to the others that share the main server under one prefix. A beat
// tells the load of this process, and learns its share of the limits. Each process calls a script
// about every second; many processes call it more rarely, as a call costs the time for all. A
// process is known for ten such pauses after its last beat, so a process that is cut off keeps its
// share for so long. Redis can run a call long after the process has given the call up, so a call
// carries a deadline and a number.
//
// A beat tells the share that is in use, and no other beat is under way. So the script leaves room
// for this share and for the one of its answer, and shares do not overlap: see script/fleet.lua.
type fleet struct {
	server *server
	script *rueidis.Lua
	begun  chan struct{} // closed after the first beat, also one that failed
	owes   func() bool   // this process has hits or holders of an outage to tell

	demand atomic.Pointer[func() uint64] // see Store.Follow; nil: the load is 0

	back chan struct{} // Redis answers again after lost
	lost atomic.Int64  // when Redis was first found away, in microseconds since the start of the store; 0: it is not

	wasReset func() // is called after a reset by another process
	zones    zoneReleases

	// Of the goroutine of run.
	first, last int64  // beats of a row without a gap, in microseconds of Redis's time; 0: the last beat had no answer
	refused     bool   // the last error was logged
	reset       string // the last known value of resets
	looked      bool   // for resets
	ahead       int64  // microseconds that the clock of Redis was ahead of the time since the start of the store; 0: not known
	load        load
	number      int64 // of the last beat
	answered    int64 // number of the last beat with an answer that counts
	asked       int64 // when that beat began, by now
	moves       bool  // the share has changed, or should be longer
}

const (
	fleetBeat    = time.Second
	fleetPause   = 10 * time.Millisecond  // for each process between two beats
	fleetKnown   = 10                     // usual pauses between beats
	fleetSettled = 5 * time.Second        // after a gap all others have beaten again
	fleetLeave   = 500 * time.Millisecond // for the last call
	fleetTelling = 100 * time.Millisecond // between two beats while others have to tell, or shares move
)

func newFleet(s *server) (*fleet, error) {
	text, err := scriptParts.ReadFile("script/fleet.lua")
	if err != nil {
		return nil, err
	}
	compare, err := scriptParts.ReadFile("script/zones.lua")
	if err != nil {
		return nil, err
	}
	return &fleet{
		server: s, script: rueidis.NewLuaScript(string(text)), begun: make(chan struct{}), back: make(chan struct{}, 1),
		owes: func() bool { return false }, zones: zoneReleases{server: s, script: rueidis.NewLuaScript(string(compare))},
	}, nil
}

// run makes this process known until ctx ends, and then takes it out. The first beat comes as soon
// as there is a connection.
func (f *fleet) run(ctx context.Context) {
	_ = f.server.connection.Await(ctx) // the connection logs why
	timer := time.NewTimer(0)
	defer timer.Stop()
	for begun := sync.OnceFunc(func() { close(f.begun) }); ; {
		f.beat(ctx, false)
		begun()
		timer.Reset(f.pause())
		select {
		case <-timer.C:
		case <-f.back:
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

func (f *fleet) pause() time.Duration {
	usual := fleetBeat
	if f.last > 0 && (f.moves || f.lost.Load() > 0) {
		usual = fleetTelling
	}
	return max(usual, f.rest())
}

// rest returns the shortest time between two beats.
func (f *fleet) rest() time.Duration { return time.Duration(f.server.processes.Load()) * fleetPause }

// away notes that Redis is asked whether it is back.
func (f *fleet) away() {
	if f.lost.CompareAndSwap(0, max(1, time.Since(f.server.started).Microseconds())) {
		f.server.told.Store(false)
	}
	f.server.regained.Store(nil)
}

// returned notes that Redis is back: the next beat comes at once.
func (f *fleet) returned() {
	select {
	case f.back <- struct{}{}:
	default:
	}
}

func (f *fleet) beat(ctx context.Context, leaves bool) {
	ctx, cancel := context.WithTimeout(ctx, fleetBeat)
	defer cancel()
	connection := f.server.connection
	client, err := f.server.client()
	if err != nil {
		f.last = 0
		return // the connection logs why
	}
	begun := time.Since(f.server.started).Microseconds()
	known := (fleetKnown * max(fleetBeat, f.rest())).Microseconds()
	at := cmp.Or(f.server.givenNow(), begun)
	if at-f.asked >= known {
		f.answered = 0 // Redis may have forgotten this process
	}
	f.number++
	args := f.arguments(begun, known, f.load.next(at, f.demand.Load()), leaves)
	answer, err := f.script.Exec(ctx, client, []string{f.server.prefix + "fleet"}, args).AsIntSlice()
	if err = connection.Report(err); err == nil && len(answer) != 7 {
		err = errReply
	}
	if err != nil {
		f.last = 0
		f.failed(err)
		return
	}
	f.refused = false
	f.lookForResets(ctx, client)
	f.ahead = answer[0] - begun
	switch uncounted := answer[4] < 0; {
	case leaves:
	case uncounted: // the clock of Redis has jumped ahead, so the next beat counts
		f.last = 0
	default:
		if gap := answer[0]-f.last > known; gap || answer[2] == 0 {
			f.first = answer[0]
		}
		f.last, f.answered, f.asked = answer[0], f.number, at
		f.heard(answer[1])
		f.learnTold(answer[3] + max(0, f.server.processes.Load()-answer[1]))
		f.move(uint64(answer[4])<<32|uint64(answer[5]), answer[6] == 1)
		f.zones.compare(ctx, client, answer[0], f.rest())
	}
}

// arguments returns the arguments of the script at an instant, in microseconds since the start of
// the store.
func (f *fleet) arguments(begun, known, load int64, leaves bool) []string {
	deadline, since := int64(0), int64(0)
	if lost := f.lost.Load(); f.ahead != 0 {
		if f.server.given == nil {
			deadline = f.ahead + begun + fleetBeat.Microseconds()
		}
		if lost > 0 {
			since = f.ahead + lost
		}
	}
	share := f.server.share.Load()
	args := []string{string(f.server.name[:])}
	for _, n := range []int64{
		f.server.givenNow(), known, number(f.owes()), since, number(leaves), deadline,
		load, f.number, f.answered, int64(share >> 32), int64(uint32(share)),
	} {
		args = append(args, strconv.FormatInt(n, 10))
	}
	former := ""
	if name := f.server.former.Load(); name != nil {
		former = string(name[:])
	}
	return append(args, former)
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

func number(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

// heard notes how many processes Redis has counted. After a gap, or a loss of the key, the others
// may not have been counted again yet. Until then a smaller number does not count.
func (f *fleet) heard(size int64) {
	settled := f.last-f.first >= fleetSettled.Microseconds()
	if settled {
		f.server.assumed.Store(0)
	}
	if settled || size >= f.server.processes.Load() {
		f.server.processes.Store(size)
	}
}

// move takes the share of an answer. The share stays until Redis was told the hits of an outage:
// another share could admit these hits again.
func (f *fleet) move(share uint64, short bool) {
	if f.lost.Load() > 0 {
		return
	}
	f.moves = short || share != f.server.share.Load()
	f.server.share.Store(share)
}

// learnTold notes whether all processes have told their hits and holders since Redis was away.
func (f *fleet) learnTold(untold int64) {
	if untold == 0 && f.lost.Load() > 0 && !f.owes() {
		f.server.told.Store(true)
		f.lost.Store(0)
	}
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

// load is the load of this process, as others know it: requests in a second. Equal bursts come to
// beats of two processes in other parts. So the mean has the same weight for all requests of a
// burst. Then shares do not move, as they stand still while loads differ a little.
type load struct {
	at    int64 // of the last count, in microseconds
	count uint64
	beats int     // in mean, loadMemory at most
	mean  float64 // of the last seconds
}

const (
	loadMemory = 8 // beats
	loadLeast  = 8 // is added to each load: a few requests say little
)

// next returns the load at a beat. 0: the process has just started, and the script takes the mean.
func (l *load) next(at int64, demand *func() uint64) int64 {
	if demand == nil {
		return 0
	}
	count, since := (*demand)(), time.Duration(at-l.at)*time.Microsecond
	if l.at == 0 || since >= fleetBeat/2 {
		if l.at > 0 {
			l.beats = min(l.beats+1, loadMemory)
			l.mean += (float64(count-l.count)/since.Seconds() - l.mean) / float64(l.beats)
		}
		l.at, l.count = at, count
	}
	return l.told()
}

func (l *load) told() int64 {
	if l.beats < loadMemory {
		return 0
	}
	return int64(min(loadLeast+l.mean, 1<<32-1))
}

// shareNow returns the share of this process. Redis may have given none, or have counted fewer
// processes than are assumed. Then the name of this process chooses one of equal shares, and
// another process may have the same hits.
func (b *base) shareNow() store.Share {
	assumed, arc := b.assumed.Load(), b.share.Load()
	if share := (store.Share{From: uint32(arc >> 32), To: uint32(arc)}); assumed <= b.processes.Load() && share.To > 0 {
		return share
	}
	n := uint64(max(1, assumed, b.processes.Load()))
	place := binary.LittleEndian.Uint64(b.name[:]) % n
	return store.Share{From: uint32(store.Circle * place / n), To: uint32(store.Circle * (place + 1) / n)}
}
