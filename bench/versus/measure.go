package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
)

const (
	connections = 4
	streams     = 32 // of a connection, in a closed loop
	steadyRate  = 4000
	population  = 10_000 // keys of the limit that never denies
	popularity  = 1.1    // Zipf's s: eleven keys get 40 requests a second or more of steadyRate
	secondKeys  = 8
	dayKeys     = 64 // of a turn
	longest     = 5 * time.Second
	most        = 100 // requests of a write
	pairs       = 3   // how often a part of a turn asks the bare server and the service in turns
)

// loads is how many open loops there are.
const loads = 3

// shares are their rates, as parts of the capacity.
func shares() [loads]float64 { return [loads]float64{0.3, 0.6, 0.8} }

// turn is the figures of one turn of a contender.
type turn struct {
	steady, bareSteady use // at steadyRate, and of the bare server beside it
	full, bareFull     use // in the closed loop
	p50, p99, p999     [loads]time.Duration
	denied             int // by the limit that never denies
	failed             int
	tally              tally
}

// use is the CPU time of a service and of its Redis.
type use struct {
	server, redis, took time.Duration
	requests            int
}

func (u use) add(v use) use {
	return use{u.server + v.server, u.redis + v.redis, u.took + v.took, u.requests + v.requests}
}

// perServer and perRedis are for one request.
func (u use) perServer() time.Duration { return u.server / time.Duration(max(u.requests, 1)) }
func (u use) perRedis() time.Duration  { return u.redis / time.Duration(max(u.requests, 1)) }

// rate returns the requests per second.
func (u use) rate() float64 { return float64(u.requests) / max(u.took.Seconds(), 1e-9) }

// runs are the measurements of a contender.
type runs struct {
	*contender

	site  *site
	keys  [][]byte // requests for the limit that never denies
	turns []turn
	bytes memory
	why   string // of a failure
}

// memory is bytes for each key.
type memory struct{ server, redis float64 }

// spans are the lengths of a turn's parts, and the number of keys in memory.
type spans struct {
	part, flood time.Duration
	keys        int
}

// take measures a turn beside the bare server.
func (r *runs) take(ctx context.Context, bare *runs, s spans, number int) (err error) {
	t := turn{}
	if _, err := r.paced(ctx, steadyRate, s.part/4); err != nil { // warm
		return err
	}
	t.steady, t.bareSteady, err = r.beside(bare, &t, func(of *runs) ([]drive.Record, error) {
		return of.paced(ctx, steadyRate, s.part/2)
	})
	if err != nil {
		return err
	}
	t.full, t.bareFull, err = r.beside(bare, &t, func(of *runs) ([]drive.Record, error) {
		return of.closed(ctx, s.part/2, of.free)
	})
	if err != nil {
		return err
	}
	for i, share := range shares() {
		all, err := r.paced(ctx, max(1, int(share*t.full.rate())), s.part)
		if err != nil {
			return err
		}
		t.count(all)
		took := make([]time.Duration, len(all))
		for n := range all {
			took[n] = time.Duration(all[n].Received - all[n].Sent)
		}
		slices.Sort(took)
		t.p50[i], t.p99[i], t.p999[i] = program.At(took, 0.5), program.At(took, 0.99), program.At(took, 0.999)
	}
	if r.name != bareName {
		if t.tally, err = r.flood(ctx, s.flood, number); err != nil {
			return err
		}
	}
	r.turns = append(r.turns, t)
	return nil
}

// count adds the failures of requests that no limit denies, and returns the number of requests.
func (t *turn) count(all []drive.Record) int {
	for i := range all {
		switch all[i].Result {
		case drive.Denied:
			t.denied++
		case drive.Failed, drive.Unreached, drive.Open:
			t.failed++
		case drive.Allowed:
		}
	}
	return len(all)
}

// beside asks the bare server and the service in turns. The speed of a shared machine changes from
// one minute to the next, and so changes both. The failures of the service count in t.
func (r *runs) beside(bare *runs, t *turn, ask func(*runs) ([]drive.Record, error)) (own, other use, err error) {
	for range pairs {
		if r != bare {
			part, err := bare.cpu(new(turn), ask)
			if err != nil {
				return own, other, err
			}
			other = other.add(part)
		}
		part, err := r.cpu(t, ask)
		if err != nil {
			return own, other, err
		}
		own = own.add(part)
	}
	if r == bare {
		other = own
	}
	return own, other, nil
}

// cpu returns the use of the requests that ask asks.
func (r *runs) cpu(t *turn, ask func(*runs) ([]drive.Record, error)) (u use, err error) {
	before, err := r.used()
	if err != nil {
		return u, err
	}
	begun := time.Now()
	all, err := ask(r)
	if err != nil {
		return u, err
	}
	took := time.Since(begun)
	after, err := r.used()
	return use{after[0] - before[0], after[1] - before[1], took, t.count(all)}, err
}

// used returns the CPU time of the service and of Redis so far.
func (r *runs) used() (used [2]time.Duration, err error) {
	if used[0], err = drive.CPU(r.site.process.PID()); err != nil || r.site.store == nil {
		return used, err
	}
	used[1], err = drive.CPU(r.site.store.Process().PID())
	return used, err
}

// free returns a request for one of the keys that are never denied, the popular ones more often.
func (r *runs) free(zipf *rand.Zipf) (int32, []byte) { return 0, r.keys[zipf.Uint64()] }

func zipf(seed uint64) *rand.Zipf {
	return rand.NewZipf(rand.New(rand.NewPCG(seed, 25)), popularity, 1, population-1)
}

// paced asks at random instants, at a rate on average.
func (r *runs) paced(ctx context.Context, rate int, span time.Duration) (all []drive.Record, err error) {
	staying, cancel := context.WithCancel(ctx)
	defer cancel()
	var group errgroup.Group
	recorders := r.recorders()
	for _, one := range recorders {
		group.Go(func() error { one.Stay(staying); return nil })
		one.AwaitConnection(ctx)
	}
	keys := zipf(uint64(rate))
	n := 0
	for due := range drive.Arrivals(ctx, rate, span) {
		for part := range slices.Chunk(due, most) {
			requests := make([][]byte, len(part))
			for i := range part {
				_, requests[i] = r.free(keys)
			}
			recorders[n%connections].Send(make([]int32, len(part)), requests)
			n++
		}
	}
	for until := time.Now().Add(longest); waiting(recorders) > 0 && time.Now().Before(until); {
		<-time.After(time.Millisecond)
	}
	cancel()
	return r.records(recorders), errors.Join(group.Wait(), context.Cause(ctx))
}

// closed asks in a closed loop.
func (r *runs) closed(ctx context.Context, span time.Duration, next func(*rand.Zipf) (int32, []byte)) ([]drive.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, span+longest)
	defer cancel()
	recorders := r.recorders()
	asking, ctx := errgroup.WithContext(ctx)
	until := time.Now().Add(span)
	for i, one := range recorders {
		asking.Go(func() error {
			keys := zipf(uint64(i))
			return one.Closed(ctx, streams, func() (int32, []byte, bool) {
				tag, request := next(keys)
				return tag, request, time.Now().Before(until)
			})
		})
	}
	err := asking.Wait()
	return r.records(recorders), err
}

func (r *runs) recorders() []*drive.Recorder {
	all := make([]*drive.Recorder, connections)
	for i := range all {
		all[i] = drive.NewRecorder(r.site.address, 0, r.call())
	}
	return all
}

func waiting(recorders []*drive.Recorder) (n int) {
	for _, r := range recorders {
		n += r.Waiting()
	}
	return n
}

// records returns all records, and keeps the first reason of a failure for the report.
func (r *runs) records(recorders []*drive.Recorder) (all []drive.Record) {
	for _, one := range recorders {
		records, failed := one.Records()
		if all = append(all, records...); failed != nil && r.why == "" {
			r.why = failed.Error()
		}
	}
	return all
}

// flood asks far more than strict limits admit, and judges the answers.
func (r *runs) flood(ctx context.Context, span time.Duration, number int) (sum tally, err error) {
	requests := make([][]byte, secondKeys+dayKeys)
	for i := range requests {
		requests[i] = r.request(classOf(i), fmt.Sprintf("flood-%d-%d", number, i))
	}
	all, err := r.closed(ctx, span, func(*rand.Zipf) (int32, []byte) {
		i := rand.IntN(secondKeys)
		if rand.IntN(2) == 0 {
			i = secondKeys + rand.IntN(dayKeys)
		}
		return int32(i), requests[i]
	})
	of := make([][]drive.Record, len(requests))
	for _, record := range all {
		of[record.Tag] = append(of[record.Tag], record)
	}
	for i := range of {
		l := classOf(i).of()
		l.anchored = r.anchored
		sum.add(judge(l, of[i]))
	}
	return sum, err
}

// classOf returns the class of a key of the flood.
func classOf(key int) class {
	if key < secondKeys {
		return second
	}
	return day
}

// fill measures the memory of a fresh process for each key.
func (r *runs) fill(ctx context.Context, p *programs, s spans) (err error) {
	if r.batch == 0 {
		return nil
	}
	fresh, err := r.open(ctx, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fresh.close()) }()
	of := &runs{contender: r.contender, site: fresh, keys: r.keys}
	if _, err := of.paced(ctx, steadyRate, s.part/2); err != nil { // buffers and connections have their size then
		return err
	}
	before, err := fresh.memory(ctx)
	if err != nil {
		return err
	}
	if err := of.ask(ctx, s.keys); err != nil {
		return err
	}
	after, err := fresh.memory(ctx)
	n := float64(s.keys)
	r.bytes = memory{(after.server - before.server) / n, (after.redis - before.redis) / n}
	return err
}

// ask charges a hit on each of many keys.
func (r *runs) ask(ctx context.Context, keys int) error {
	var next atomic.Int64
	recorders := r.recorders()
	asking, ctx := errgroup.WithContext(ctx)
	for _, one := range recorders {
		asking.Go(func() error {
			return one.Closed(ctx, max(2, streams/r.batch), func() (int32, []byte, bool) {
				names := make([]string, r.batch)
				last := int(next.Add(int64(r.batch)))
				for i := range names {
					names[i] = fmt.Sprintf("client-%09d", last-i)
				}
				return 0, r.request(day, names...), last-r.batch < keys
			})
		})
	}
	err := asking.Wait()
	all := r.records(recorders)
	for i := range all {
		if all[i].Result != drive.Allowed && err == nil {
			err = fmt.Errorf("a first hit on a key has the result %d: %s", all[i].Result, r.why)
		}
	}
	return err
}

// memory returns the resident memory of the service and the used memory of Redis, in bytes.
func (s *site) memory(ctx context.Context) (m memory, err error) {
	select {
	case <-time.After(time.Second): // a collection of garbage ends
	case <-ctx.Done():
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.PID()))
	if err != nil {
		return m, err
	}
	if m.server, err = resident(string(text)); err != nil || s.store == nil {
		return m, err
	}
	info, err := s.store.Info(ctx, "memory")
	if err != nil {
		return m, err
	}
	m.redis, err = strconv.ParseFloat(info["used_memory"], 64)
	return m, err
}

// resident reads VmRSS of /proc/PID/status, in bytes.
func resident(status string) (float64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kilobytes, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kilobytes * 1024, err
		}
	}
	return 0, errors.New("/proc/PID/status has no VmRSS")
}
