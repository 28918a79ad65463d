package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/test/parts"
)

// row holds the results of one server.
type row struct {
	name    string
	answers []answer
	without int // requests decided without Redis
	cpu     cpu // per request; 0: not measured
}

// cpu is CPU time used, by the server that was asked and by Redis.
type cpu struct{ server, redis time.Duration }

// measure asks the servers one after the other.
func (b *bench) measure(ctx context.Context) ([]row, error) {
	var rows []row
	for _, one := range []struct {
		name    string
		address string
		sidecar *parts.Sidecar
	}{
		{"bare grpc-go", b.bare.GRPC, nil},
		{"in memory", b.memory.GRPC, b.memory},
		{"Redis", b.shared.GRPC, b.shared},
	} {
		r, err := b.steady(ctx, one.name, one.address, one.sidecar)
		if err != nil {
			return rows, err
		}
		rows = append(rows, r)
	}
	stopped, err := b.stopped(ctx)
	if err != nil {
		return rows, err
	}
	rows = append(rows, stopped)
	again, err := b.steady(ctx, "Redis again", b.shared.GRPC, b.shared)
	if err != nil {
		return rows, err
	}
	rows = append(rows, again)
	for _, r := range rows {
		for _, a := range r.answers {
			if a.err != nil {
				return rows, fmt.Errorf("%s: there were errors, such as: %w", r.name, a.err)
			}
		}
	}
	return rows, nil
}

// steady asks a server for the duration, and a little before that counts for nothing.
func (b *bench) steady(ctx context.Context, name, address string, sidecar *parts.Sidecar) (row, error) {
	r := row{name: name}
	if _, err := b.ask(ctx, address, min(b.o.duration, time.Second)); err != nil {
		return r, err
	}
	before, without, err := b.used(ctx, sidecar)
	if err != nil {
		return r, err
	}
	if r.answers, err = b.ask(ctx, address, b.o.duration); err != nil {
		return r, err
	}
	after, since, err := b.used(ctx, sidecar)
	if err != nil {
		return r, err
	}
	n := time.Duration(max(len(r.answers), 1))
	r.without = since - without
	r.cpu = cpu{(after.server - before.server) / n, (after.redis - before.redis) / n}
	return r, nil
}

// used returns the CPU time of a sidecar and of Redis, and the requests decided without Redis. Without a sidecar, used returns the
// CPU time of the bare server.
func (b *bench) used(ctx context.Context, sidecar *parts.Sidecar) (c cpu, without int, err error) {
	if sidecar == nil {
		c.server, err = drive.CPU(b.bare.PID())
		return c, 0, err
	}
	m, err := drive.ReadMetrics(ctx, sidecar.HTTP)
	if err != nil {
		return c, 0, err
	}
	c.server = seconds(m.Sum("process_cpu_seconds_total"))
	if sidecar == b.memory {
		return c, 0, nil
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

// stopped asks the sidecar that counts in Redis, and stops Redis again and again. Answers that came while Redis was stopped count.
func (b *bench) stopped(ctx context.Context) (row, error) {
	r := row{name: "Redis stopped"}
	_, before, err := b.used(ctx, b.shared)
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
		all := <-answers
		for _, failure := range []error{err, b.redis.Continue(), <-failed} {
			if failure != nil {
				return r, failure
			}
		}
		for _, a := range all {
			if a.sent.Add(a.took).After(at) {
				r.answers = append(r.answers, a)
			}
		}
	}
	if err := b.awaitRedis(ctx); err != nil {
		return r, err
	}
	_, since, err := b.used(ctx, b.shared)
	r.without = since - before
	return r, err
}

// report writes a table.
func report(w io.Writer, rows []row) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "counts\trequests\terrors\twithout Redis\tp50\tp99\tp99.9\tlongest\tsent late, p99\tCPU server\tRedis\t")
	for _, r := range rows {
		var took, late []time.Duration
		errors := 0
		for _, a := range r.answers {
			took, late = append(took, a.took), append(late, a.late)
			if a.err != nil {
				errors++
			}
		}
		slices.Sort(took)
		slices.Sort(late)
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.name, len(r.answers), errors, r.without,
			milliseconds(at(took, 0.5)), milliseconds(at(took, 0.99)), milliseconds(at(took, 0.999)), milliseconds(at(took, 1)),
			milliseconds(at(late, 0.99)), microseconds(r.cpu.server), microseconds(r.cpu.redis))
	}
	_ = table.Flush() // as with all that is printed
}

// at returns the value below or at which that part of the sorted ones lies.
func at(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1e3) }

func microseconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", d.Seconds()*1e6)
}
