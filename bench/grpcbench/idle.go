package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/test/parts"
)

// memory is the bytes that a server holds.
type memory struct {
	live     int // heap after a collection, and stacks; 0: the server does not tell
	resident int // also garbage, and free memory of the runtime
}

// idle reports how many bytes each server holds for each connection. Every connection has had one
// request. A tenth of the connections comes and goes before, so that the growth has no memory that
// a server keeps in any case.
func (b *bench) idle(ctx context.Context, stdout io.Writer, contenders []contender) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "bytes for each of %d connections\theap and stacks\tresident\tresident in all\t\n", b.o.idle)
	for i := range contenders {
		c := &contenders[i]
		if _, err := opened(ctx, c, max(b.o.idle/10, 1)); err != nil {
			return err
		}
		before, err := c.server.memory(ctx)
		if err != nil {
			return err
		}
		after, err := opened(ctx, c, b.o.idle)
		if err != nil {
			return err
		}
		live := "-"
		if after.live > 0 {
			live = strconv.Itoa((after.live - before.live) / b.o.idle)
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t\n", c.name, live, (after.resident-before.resident)/b.o.idle, after.resident)
	}
	return table.Flush()
}

// opened returns the memory of a server while n connections are open.
func opened(ctx context.Context, c *contender, n int) (memory, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // closes all
	request, err := message(c.path, theClient)
	if err != nil {
		return memory{}, err
	}
	for range n {
		w, err := drive.DialWire(ctx, c.server.grpc, time.Minute)
		if err != nil {
			return memory{}, err
		}
		if err := w.Send(nil, request); err != nil {
			return memory{}, err
		}
		var failed error
		for ended := false; !ended; {
			err := w.Receive(func(_ uint32, err error) { ended, failed = true, err })
			if err := errors.Join(err, failed); err != nil {
				return memory{}, err
			}
		}
	}
	return c.server.memory(ctx)
}

// memory returns the memory of a server, after a collection where the server lets one happen.
func (s *server) memory(ctx context.Context) (m memory, err error) {
	if s.http != "" {
		for range 2 { // the second one empties pools
			if _, _, err := parts.Page(ctx, http.MethodGet, "http://"+s.http+"/debug/pprof/heap?gc=1", ""); err != nil {
				return m, err
			}
		}
		page, err := drive.ReadMetrics(ctx, s.http)
		if err != nil {
			return m, err
		}
		m.live = int(page.Sum("go_memstats_heap_alloc_bytes") + page.Sum("go_memstats_stack_inuse_bytes"))
	}
	m.resident, err = resident(s.PID())
	return m, err
}

// resident returns the bytes of a process that are in memory.
func resident(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`).FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("/proc/%d/status: has no VmRSS", pid)
	}
	kB, err := strconv.Atoi(string(found[1]))
	return kB << 10, err
}
