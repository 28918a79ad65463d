package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/pprof/profile"

	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

// topFunctions is the number of functions that a report names.
const topFunctions = 12

// profiles reports where the CPU time of Weir's servers goes, in each shape.
func (b *bench) profiles(ctx context.Context, stdout io.Writer, contenders []contender) error {
	for _, s := range b.o.shapes {
		for i := range contenders {
			if c := &contenders[i]; c.server.http != "" {
				if err := b.profile(ctx, stdout, c, s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// profile lets turns follow each other while a profile is taken.
func (b *bench) profile(ctx context.Context, stdout io.Writer, c *contender, s shape) error {
	n := s.share(b.o.requests)
	if _, err := b.turn(ctx, c, s, n); err != nil { // warm up
		return err
	}
	seconds := strconv.Itoa(max(int(b.o.profile.Seconds()), 1))
	type page struct {
		text string
		err  error
	}
	taken := make(chan page, 1)
	go func() {
		answer, text, err := parts.Page(ctx, http.MethodGet, "http://"+c.server.http+"/debug/pprof/profile?seconds="+seconds, "")
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("the profile of %s: %s: %s", c.name, answer.Status, text)
		}
		taken <- page{text, err}
	}()
	var costs []time.Duration
	for {
		select {
		case p := <-taken:
			if p.err != nil {
				return p.err
			}
			if len(costs) == 0 {
				return errors.New("the profile is shorter than a turn")
			}
			all, err := profile.ParseData([]byte(p.text))
			if err != nil {
				return err
			}
			each := program.Median(costs)
			fmt.Fprintf(stdout, "%v %s: %s microseconds of CPU time per request\n\n", s, c.name, microseconds(each))
			return errors.Join(shares(stdout, "part", each, all, part, 0), shares(stdout, "function", each, all, function, topFunctions))
		default:
		}
		t, err := b.turn(ctx, c, s, n)
		if err != nil {
			return err
		}
		costs = append(costs, t.server)
	}
}

// shares writes the share of each name in the CPU time of a request, the largest first. At most is
// a number of rows, 0 for all.
func shares(w io.Writer, title string, each time.Duration, all *profile.Profile, name func([]profile.Line) string, atMost int) error {
	var sum int64
	used := make(map[string]int64)
	for _, s := range all.Sample {
		var stack []profile.Line // innermost first, with inlined calls
		for _, l := range s.Location {
			stack = append(stack, l.Line...)
		}
		used[name(stack)] += s.Value[len(s.Value)-1] // nanoseconds
		sum += s.Value[len(s.Value)-1]
	}
	names := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return cmp.Or(cmp.Compare(used[b], used[a]), cmp.Compare(a, b)) })
	if atMost > 0 {
		names = names[:min(atMost, len(names))]
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s\tns per request\tshare\n", title)
	for _, name := range names {
		share := float64(used[name]) / float64(max(sum, 1))
		fmt.Fprintf(table, "%s\t%.0f\t%.1f %%\n", name, share*float64(each), share*100)
	}
	fmt.Fprintln(table)
	return table.Flush()
}

// function returns the innermost function of a stack.
func function(stack []profile.Line) string {
	if len(stack) == 0 {
		return "unknown"
	}
	return strings.TrimPrefix(stack[0].Function.Name, "github.com/weirproxy/weir/")
}

// part returns the part of a request's way that a stack belongs to: the innermost function with a
// part decides. So copying, hashing and locking belong to the part that needs them.
func part(stack []profile.Line) string {
	if len(stack) > 0 && isSystemCall(stack[0].Function.Name) {
		for _, l := range stack {
			switch name := l.Function.Name; {
			case strings.HasSuffix(name, ".tryRead"), strings.HasPrefix(name, "syscall.read"), strings.HasSuffix(name, ".recvmsg"):
				return "system call: read"
			case strings.HasSuffix(name, ".tryWrite"), strings.HasPrefix(name, "syscall.write"):
				return "system call: write"
			case name == "runtime.netpoll":
				return "system call: wait for connections"
			}
		}
		return "system calls: others"
	}
	for _, l := range stack {
		if p := partOf(l.Function.Name, path.Base(l.Function.Filename)); p != "" {
			return p
		}
	}
	return "Go's scheduler and garbage collector"
}

func isSystemCall(name string) bool {
	return strings.HasPrefix(name, "syscall.") || strings.HasPrefix(name, "internal/runtime/syscall") ||
		name == "runtime.futex" || name == "runtime.usleep"
}

// partOf returns the part of a function in a file, "" for functions that serve every part.
func partOf(name, file string) string {
	switch name {
	case "time.now", "time.Now", "time.runtimeNano", "runtime.nanotime", "runtime.nanotime1":
		return "clock"
	}
	if strings.HasPrefix(name, "github.com/prometheus/") {
		return "metrics"
	}
	if strings.HasPrefix(name, "google.golang.org/grpc") || strings.HasPrefix(name, "golang.org/x/net/http2") {
		return "grpc-go"
	}
	room, ok := strings.CutPrefix(name, "github.com/weirproxy/weir/")
	if !ok {
		return ""
	}
	slash := strings.LastIndexByte(room, '/')
	room = room[:slash+1+strings.IndexByte(room[slash+1:], '.')]
	switch {
	case room == "internal/lane" && slices.Contains([]string{"hpack.go", "huffman.go", "cache.go", "field.go"}, file):
		return "HPACK"
	case room == "internal/lane":
		return "frames"
	case room == "internal/wire/laneserver", room == "internal/wire":
		return "connections: buffers, locks, bounds"
	case room == "pkg/server" && slices.Contains([]string{"decode.go", "encode.go"}, file):
		return "codec"
	case file == "counts.go", file == "metrics.go", room == "internal/durations":
		return "metrics"
	case room == "pkg/server":
		return "call: pool, status, panics"
	case room == "pkg/descriptors":
		return "match"
	case room == "pkg/limiter":
		return "charges and verdict"
	case strings.HasPrefix(room, "pkg/store"), room == "pkg/algorithms":
		return "store"
	}
	return room
}
