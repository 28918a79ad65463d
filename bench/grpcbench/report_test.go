package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

func TestSucceededReadsWhatH2loadSays(t *testing.T) {
	const output = "requests: 100 total, 100 started, 100 done, 98 succeeded, 2 failed\nstatus codes: 98 2xx, 0 3xx, 0 4xx, 2 5xx\n"
	if got := succeeded(output); got != 98 {
		t.Errorf("succeeded: got %d; want 98", got)
	}
	if got := succeeded("nothing"); got != 0 {
		t.Errorf("succeeded without a word: got %d; want 0", got)
	}
}

func TestPercentilesReadTheLogOfH2load(t *testing.T) {
	var log strings.Builder
	for i := range 100 {
		fmt.Fprintf(&log, "1700000000\t200\t%d\n", 100-i)
	}
	p50, p99, err := percentiles([]byte(log.String()))
	if p50 != 51*time.Microsecond || p99 != 100*time.Microsecond || err != nil {
		t.Errorf("percentiles: got %v, %v, %v; want 51µs and 100µs", p50, p99, err)
	}
	for _, bad := range []string{"", "1\t200\n", "1\t200\tx\n"} {
		if _, _, err := percentiles([]byte(bad)); err == nil {
			t.Errorf("percentiles(%q): got no error", bad)
		}
	}
}

// printed returns the report of one shape.
func printed(t *testing.T, o options, all ...contender) string {
	t.Helper()
	var out bytes.Buffer
	r := newReport(&out, o)
	r.shape(shape{4, 50}, 10, all)
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestReportComparesToTheFirst(t *testing.T) {
	got := printed(t, options{rounds: 2, network: "tcp"},
		contender{name: "bare", turns: []turn{{server: 10_000}, {server: 12_000}}},
		contender{name: "lane", turns: []turn{{server: 1000, late: 1}, {server: 1200, late: 2}}})
	want := `server CPU per request in microseconds, median of 2 rounds; a client asks for one key over tcp; times of answers in microseconds

  shape  server    CPU  ratio  to floor  lowest  highest  p50  p99  late  requests
   4x50    bare  11.00  1.000         -   10.00    12.00    -    -     0        10
   4x50    lane   1.10  0.100         -    1.00     1.20    -    -     3        10
`
	if got != want {
		t.Errorf("report: got\n%s\nwant\n%s", got, want)
	}
}

// Each round has a ratio of its own, as a machine has fast and slow moments.
func TestReportHasTheMedianOfTheRatiosOfRounds(t *testing.T) {
	floor := contender{name: "floor", kind: "floor", turns: []turn{{server: 1000}, {server: 2000}, {server: 9000}}}
	got := printed(t, options{rounds: 3, network: "tcp"}, contender{name: "bare", turns: []turn{{server: 10_000}, {server: 20_000}, {server: 10_000}}},
		floor, contender{name: "lane", turns: []turn{{server: 2000}, {server: 4000}, {server: 9000}}})
	if row := strings.Fields(strings.Split(got, "\n")[5]); len(row) < 5 || row[1] != "lane" || row[3] != "0.200" || row[4] != "2.000" {
		t.Errorf("got\n%s\nwant the ratios 0.200 to bare and 2.000 to the floor", got)
	}
}

func TestReportTellsSidecarAndRedisApart(t *testing.T) {
	got := printed(t, options{rounds: 1, network: "tcp", redis: true, keys: 1000},
		contender{name: "bare", turns: []turn{{server: 10_000}}},
		contender{name: "lane", turns: []turn{{server: 12_000, redis: 3000, alone: 2}}})
	want := `server CPU per request in microseconds, median of 1 rounds; a client asks for 1000 keys at random over tcp; times of answers in microseconds

  shape  server    CPU  Redis   both  ratio  to floor  lowest  highest  p50  p99  late  alone  requests
   4x50    bare  10.00      -  10.00  1.000         -   10.00    10.00    -    -     0      0        10
   4x50    lane  12.00   3.00  15.00  1.500         -   15.00    15.00    -    -     0      2        10
`
	if got != want {
		t.Errorf("report: got\n%s\nwant\n%s", got, want)
	}
}

func TestReportSubtractsTheTimesWithoutTheFilter(t *testing.T) {
	got := printed(t, options{rounds: 1, network: "tcp", envoy: true},
		contender{name: "bare", turns: []turn{{server: 10_000, p50: 300_000, p99: 900_000}}},
		contender{name: "no filter", turns: []turn{{p50: 100_000, p99: 200_000}}})
	want := `server CPU per request in microseconds, median of 1 rounds; h2load asks Envoy over tcp; times of answers in microseconds

  shape     server    CPU  ratio  to floor  lowest  highest     p50     p99  late  filter adds, p50     p99  requests
   4x50       bare  10.00  1.000         -   10.00    10.00  300.00  900.00     0            200.00  700.00        10
   4x50  no filter      -      -         -       -        -  100.00  200.00     0                 -       -        10
`
	if got != want {
		t.Errorf("report: got\n%s\nwant\n%s", got, want)
	}
}

// stack returns the lines of a stack of functions, each with its file.
func stack(functions ...string) (all []profile.Line) {
	for i := 0; i < len(functions); i += 2 {
		all = append(all, profile.Line{Function: &profile.Function{Name: functions[i], Filename: functions[i+1]}})
	}
	return all
}

func TestTimeBelongsToTheInnermostPartThatSpendsIt(t *testing.T) {
	const weir = "github.com/weirproxy/weir/"
	for want, stack := range map[string][]profile.Line{
		"codec":             stack("runtime.memmove", "memmove.s", weir+"pkg/server.(*decoder).string", "/x/decode.go", weir+"pkg/server.(*service).inPlace", "/x/lane.go"),
		"HPACK":             stack("bytes.Equal", "bytes.go", weir+"internal/lane.(*cache).find", "/x/cache.go", weir+"internal/lane.(*Conn).head", "/x/headers.go"),
		"frames":            stack(weir+"internal/lane.(*Conn).Receive", "/x/receive.go"),
		"metrics":           stack(weir+"pkg/limiter.(*tally).add", "/x/counts.go", weir+"pkg/limiter.(*Limiter).Check", "/x/check.go"),
		"match":             stack("aeshashbody", "asm.s", "runtime.mapaccess2", "map.go", weir+"pkg/descriptors.(*Rules).Match", "/x/match.go"),
		"store":             stack(weir+"pkg/store/memstore.(*Store).Take", "/x/take.go"),
		"system call: read": stack("syscall.RawSyscall6", "s.go", "syscall.RawSyscall", "s.go", weir+"internal/wire/laneserver.(*rawSocket).tryRead", "/x/socket_linux.go"),
		"system call: write": stack("internal/runtime/syscall/linux.Syscall6", "asm.s", "syscall.write", "z.go", "internal/poll.(*FD).Write", "fd.go",
			weir+"internal/wire/laneserver.(*netSocket).write", "/x/socket.go"),
		"clock":                                stack("runtime.nanotime1", "time.s", "time.Since", "time.go", weir+"internal/lane.(*Conn).Receive", "/x/receive.go"),
		"grpc-go":                              stack("runtime.mallocgc", "malloc.go", "google.golang.org/grpc.(*Server).processRPC", "server.go", weir+"pkg/server.(*Server).Serve", "/x/grpc.go"),
		"Go's scheduler and garbage collector": stack("runtime.findRunnable", "proc.go", "runtime.schedule", "proc.go"),
	} {
		if got := part(stack); got != want {
			t.Errorf("%s: got %q; want %q", stack[0].Function.Name, got, want)
		}
	}
}

func TestSharesAreOfTheCPUTimeOfARequest(t *testing.T) {
	line := func(function, file string) *profile.Location { return &profile.Location{Line: stack(function, file)} }
	all := &profile.Profile{Sample: []*profile.Sample{
		{Location: []*profile.Location{line("runtime.findRunnable", "proc.go")}, Value: []int64{1, 10}},
		{Location: []*profile.Location{line("github.com/weirproxy/weir/internal/lane.(*Conn).Receive", "receive.go")}, Value: []int64{3, 30}},
	}}
	var out strings.Builder
	if err := shares(&out, "part", 2000, all, part, 1); err != nil {
		t.Fatal(err)
	}
	if want := "part    ns per request  share\nframes  1500            75.0 %\n\n"; out.String() != want {
		t.Errorf("got\n%q\nwant\n%q", out.String(), want)
	}
}
