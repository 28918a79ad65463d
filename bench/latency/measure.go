package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

// row holds the results of one server.
type row struct {
	name   string
	rounds []round
}

// shown returns the requests that the watcher has shown in all rounds.
func (r *row) shown() (sum int) {
	for _, one := range r.rounds {
		sum += one.shown
	}
	return sum
}

// round holds the results of one turn of a server.
type round struct {
	answers []answer
	without int // requests decided without Redis
	shown   int // requests that the watcher has shown, also before and after the answers
	cpu     cpu // per request; 0: not measured
}

// cpu is CPU time used, by the server that was asked and by Redis.
type cpu struct{ server, redis time.Duration }

// server is a server that has a turn in each round.
type server struct {
	name    string
	address string
	process *parts.Process
	sidecar *parts.Sidecar // nil: the server answers a constant
	watched bool
}

func constant(name string, p *program.Bare) server {
	return server{name, p.GRPC, p.Process, nil, false}
}

func sidecar(name string, p *parts.Sidecar) server { return server{name, p.GRPC, p.Process, p, false} }

// measure asks the servers one after the other. The error also tells of answers that are errors.
func (b *bench) measure(ctx context.Context) (rows []row, err error) {
	defer func() {
		for _, r := range rows {
			for _, round := range r.rounds {
				for _, a := range round.answers {
					if a.err != nil && err == nil {
						err = fmt.Errorf("%s: there were errors, such as: %w", r.name, a.err)
					}
				}
			}
		}
	}()
	servers := []server{
		constant("bare grpc-go", b.bare), constant("floor", b.floor), sidecar("in memory, grpc", b.grpc), sidecar("in memory, lane", b.lane),
	}
	if b.o.watch > 0 {
		watched := sidecar("the same, watched", b.lane)
		watched.watched = true
		servers = append(servers, watched)
	}
	if b.o.leased {
		servers = []server{sidecar("in memory", b.lane), sidecar("Redis, exact", b.exact), sidecar("Redis, leased", b.shared)}
	}
	for _, s := range servers {
		rows = append(rows, row{name: s.name})
	}
	for range b.o.rounds {
		for i, s := range servers {
			r, err := b.turn(ctx, s)
			if err != nil {
				return rows, err
			}
			rows[i].rounds = append(rows[i].rounds, r)
		}
	}
	if b.o.leased {
		r, err := b.stopped(ctx)
		return append(rows, row{"leased, Redis stopped", []round{r}}), err
	}
	if !b.o.redis {
		return rows, nil
	}
	working := func(ctx context.Context) (round, error) { return b.steady(ctx, sidecar("", b.shared)) }
	for _, one := range []struct {
		name string
		do   func(context.Context) (round, error)
	}{{"Redis", working}, {"Redis stopped", b.stopped}, {"Redis again", working}} {
		r, err := one.do(ctx)
		if err != nil {
			return rows, err
		}
		rows = append(rows, row{one.name, []round{r}})
	}
	return rows, nil
}

// turn asks a server for the duration, watched or not.
func (b *bench) turn(ctx context.Context, s server) (round, error) {
	if !s.watched {
		return b.steady(ctx, s)
	}
	w, err := b.watch(ctx, s.sidecar.Admin)
	if err != nil {
		return round{}, err
	}
	r, asked := b.steady(ctx, s)
	r.shown, err = w.end()
	return r, errors.Join(asked, err)
}

// steady asks a server for the duration, and a little before that counts for nothing.
func (b *bench) steady(ctx context.Context, s server) (r round, err error) {
	if _, err := b.ask(ctx, s.address, min(b.o.duration, time.Second)); err != nil {
		return r, err
	}
	before, without, err := b.used(ctx, s)
	if err != nil {
		return r, err
	}
	if r.answers, err = b.ask(ctx, s.address, b.o.duration); err != nil {
		return r, err
	}
	after, since, err := b.used(ctx, s)
	if err != nil {
		return r, err
	}
	n := time.Duration(max(len(r.answers), 1))
	r.without = since - without
	r.cpu = cpu{(after.server - before.server) / n, (after.redis - before.redis) / n}
	return r, nil
}

// used returns the CPU time of a server and of Redis, and the requests decided without Redis.
func (b *bench) used(ctx context.Context, s server) (c cpu, without int, err error) {
	if c.server, err = drive.CPU(s.process.PID()); err != nil || s.sidecar == nil || s.sidecar != b.shared && s.sidecar != b.exact {
		return c, 0, err
	}
	m, err := drive.ReadMetrics(ctx, s.sidecar.HTTP)
	if err != nil {
		return c, 0, err
	}
	info, err := b.redis.Info(ctx, "cpu")
	if err != nil {
		return c, 0, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		s, err := strconv.ParseFloat(info[name], 64)
		if err != nil {
			return c, 0, fmt.Errorf("INFO cpu: %s: %w", name, err)
		}
		c.redis += seconds(s)
	}
	return c, int(m.Sum("weir_store_fallback_decisions_total")), nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// stop is how long Redis is stopped for a sidecar with leases. Without leases, Redis is stopped for
// the rest of the requests.
const stop = 200 * time.Millisecond

// stopped asks the sidecar that counts in Redis, and stops Redis again and again. Answers that came
// while Redis was stopped count.
func (b *bench) stopped(ctx context.Context) (r round, err error) {
	_, before, err := b.used(ctx, sidecar("", b.shared))
	if err != nil {
		return r, err
	}
	each := b.o.duration / time.Duration(b.o.stops)
	for range b.o.stops {
		if err := b.awaitRedis(ctx); err != nil {
			return r, err
		}
		answers := make(chan []answer, 1)
		failed := make(chan error, 1)
		go func() {
			all, err := b.ask(ctx, b.shared.GRPC, each+each/5)
			answers <- all
			failed <- err
		}()
		select {
		case <-time.After(each / 5):
		case <-ctx.Done():
		}
		at := time.Now()
		err := b.redis.Pause(ctx)
		var all []answer
		until := at.Add(stop)
		if b.o.leased {
			<-time.After(time.Until(until))
			err = errors.Join(err, b.redis.Continue())
			all = <-answers
		} else {
			all = <-answers
			err = errors.Join(err, b.redis.Continue())
			until = time.Now()
		}
		if err := errors.Join(err, <-failed); err != nil {
			return r, err
		}
		for _, a := range all {
			if a.due.Add(a.took).After(at) && a.due.Add(a.late).Before(until) {
				r.answers = append(r.answers, a)
			}
		}
	}
	if err := b.awaitRedis(ctx); err != nil {
		return r, err
	}
	_, since, err := b.used(ctx, sidecar("", b.shared))
	r.without = since - before
	return r, err
}

// report writes a table. Times are medians of the rounds, and numbers are sums.
func report(w io.Writer, rows []row) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "counts\trequests\terrors\twithout Redis\tp50\tp99\tp99.9\tlongest\tsent late, p99\tCPU server\tRedis\t")
	for _, r := range rows {
		parts := []float64{0.5, 0.99, 0.999, 1}
		took := make([][]time.Duration, len(parts))
		var late, server, redis []time.Duration
		requests, failed, without := 0, 0, 0
		for _, round := range r.rounds {
			times, lates := make([]time.Duration, 0, len(round.answers)), make([]time.Duration, 0, len(round.answers))
			for _, a := range round.answers {
				times, lates = append(times, a.took), append(lates, a.late)
				if a.err != nil {
					failed++
				}
			}
			slices.Sort(times)
			slices.Sort(lates)
			for i, part := range parts {
				took[i] = append(took[i], program.At(times, part))
			}
			late, server, redis = append(late, program.At(lates, 0.99)), append(server, round.cpu.server), append(redis, round.cpu.redis)
			requests, without = requests+len(round.answers), without+round.without
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t", r.name, requests, failed, without)
		for _, all := range append(took, late) {
			fmt.Fprintf(table, "%s\t", milliseconds(program.Median(all)))
		}
		fmt.Fprintf(table, "%s\t%s\t\n", program.Microseconds(program.Median(server), 1), program.Microseconds(program.Median(redis), 1))
	}
	_ = table.Flush() // as with all that is printed
	for _, r := range rows {
		if shown := r.shown(); shown > 0 {
			fmt.Fprintf(w, "%s: %d requests were shown\n", r.name, shown)
		}
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()*1e3) }
