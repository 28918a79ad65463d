package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// ceiling is the bound of resident memory with the defaults and a million keys, in bytes.
// docs/operations.md adds it up.
const ceiling = 200 << 20

// ceilingFor is the ceiling with so many keys in memory: each key that is not there leaves its
// bytes free.
func ceilingFor(keys int) int64 { return ceiling - int64(1_000_000-keys)*50 }

// An attack is a row of a table.
type attack struct {
	name  string
	how   string   // for SECURITY.md
	bound string   // the setting or rule that holds
	args  []string // of serve, beside the defaults
	run   func(a *assault)

	grpc   string                   // why the library of gRPC loses the case (--grpc-server grpc); "": it does not
	socket bool                     // through the Unix socket; else through TCP
	fresh  bool                     // brings keys of its own: the store may fill up to --max-keys
	empty  bool                     // begins with an empty store
	away   bool                     // takes the store away: denials are not exact then
	liar   func(t *testing.T) *liar // starts the Redis that keeps the counts; nil: counts are in memory
}

// attacks returns every attack.
func attacks() []attack {
	return slices.Concat(messageAttacks(), headerAttacks(), floodAttacks(), slowAttacks(), connectionAttacks(), pageAttacks(), keyAttacks(),
		quotaAttacks(), adminAttacks(), socketAttacks(), redisAttacks(), togetherAttacks())
}

// chosen returns the attacks to run: with -short only attacks whose outcome depends on the server
// of Envoy's calls, as `make e2e` runs the suite again over another one.
func chosen() []attack {
	if testing.Short() {
		return slices.Concat(messageAttacks(), headerAttacks(), floodAttacks(), slowAttacks(), connectionAttacks())
	}
	return attacks()
}

// TestNoAttackHurtsTheServiceOrItsHonestClient is the suite.
func TestNoAttackHurtsTheServiceOrItsHonestClient(t *testing.T) {
	needLinux(t)
	// More attacks at once than processors would measure each other.
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, row := range chosen() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			free <- struct{}{}
			defer func() { <-free }()
			assail(t, row)
		})
	}
}

// idleWorkers is the number of goroutines that the server keeps for calls that wait.
const idleWorkers = 256

// assail starts the program, fills the store, attacks the program beside an honest client, and
// judges both.
func assail(t *testing.T, row attack) {
	t.Helper()
	if row.grpc != "" && os.Getenv("WEIR_GRPC_SERVER") == "grpc" {
		t.Skip("the library of gRPC loses: " + row.grpc)
	}
	form := currentForm(t)
	args := row.args
	var liar *liar
	if row.liar != nil {
		liar = row.liar(t)
		args = append(args, "--store=redis", "--redis-url=redis://"+liar.address)
		form.keys = 10_000
	}
	if row.empty {
		form.keys = 0
	}
	s := start(t, args...)
	to := addresses{s.GRPC, s.HTTP, s.Admin, s.Socket}
	fill(t, s.GRPC, form.keys)
	h := newHonest(t, newAssault(t.Context(), row, to).address, !row.away)
	before, goroutines := s.memory("VmRSS"), s.goroutines(t)

	asking, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.run(asking)
	}()
	counted := strike(t, row, to, liar, form.attack)
	during := s.peak()
	stop()
	<-done

	keys := form.keys
	if row.fresh {
		keys = 1_000_000
	}
	if s.ended() {
		t.Errorf("the attack ended the program; its last lines:\n%s", last(s, 12))
	} else {
		s.awaitGoroutines(t, goroutines+idleWorkers+100)
	}
	most := ceilingFor(keys)
	if os.Getenv("WEIR_GRPC_SERVER") == "grpc" {
		most += most / 4 // grpc-go has no bound of its own
	}
	if got := s.peak(); got > most {
		t.Errorf("resident memory: %s; want at most %s", mebibytes(got), mebibytes(most))
	}
	held := "no cgroup"
	if s.group != nil {
		held = "cgroup " + mebibytes(s.group.peak())
	}
	t.Logf("%s: resident %s before, %s at most, %s after, %s; %s; %s", row.name,
		mebibytes(before), mebibytes(during), mebibytes(s.memory("VmRSS")), held, h.judge(t), counted)
}

// strike attacks the program, from another process unless the liar attacks. The process has a low
// priority, so that the kernel serves the program and the honest client first. The result is the
// counts of the attack.
func strike(t *testing.T, row attack, to addresses, liar *liar, lasting time.Duration) string {
	t.Helper()
	if liar != nil {
		ctx, cancel := context.WithTimeout(t.Context(), lasting)
		defer cancel()
		a := newAssault(ctx, row, to)
		a.liar = liar
		row.run(a)
		return fmt.Sprintf("%d connections to Redis", liar.connections.Load())
	}
	on, err := json.Marshal(to)
	if err != nil {
		t.Fatal(err)
	}
	attacker, err := parts.Start("attack", "/usr/bin/env", "nice", "-n", "19", os.Args[0], "-attack="+row.name, "-on="+string(on), "-for="+lasting.String())
	if err != nil {
		t.Fatal(err)
	}
	defer attacker.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), lasting+within)
	defer cancel()
	if code, err := attacker.Wait(ctx); err != nil || code != 0 {
		t.Errorf("the attacker: exit code %d, %v:\n%s", code, err, attacker.Tail(20))
	}
	return attacker.Tail(1)
}

// last returns the last lines of the program, each cut after some text: the stack of a crash is
// long.
func last(s *target, n int) string {
	var cut []string
	for line := range strings.Lines(s.Tail(n)) {
		cut = append(cut, strings.TrimSpace(line[:min(len(line), 300)]))
	}
	return strings.Join(cut, "\n")
}

// goroutines returns the number of goroutines of the program.
func (s *target) goroutines(t *testing.T) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	n, err := s.metric(ctx, "go_goroutines")
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// awaitGoroutines waits until the program has let go of the attack.
func (s *target) awaitGoroutines(t *testing.T, most int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		n, err := s.metric(ctx, "go_goroutines")
		if err == nil && int(n) <= most {
			return
		}
		select {
		case <-s.Exited():
			t.Error("the program has ended after the attack")
			return
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Errorf("goroutines after the attack: %v, %v; want at most %d", n, err, most)
			return
		}
	}
}

// fill puts keys into the store, a thousand with each request.
func fill(t *testing.T, address string, keys int) {
	t.Helper()
	c := connect(address)
	defer c.close()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	entries := make([]entry, 1000)
	for first := 0; first < keys; first += len(entries) {
		for i := range entries {
			entries[i] = entry{"flood", fmt.Sprintf("filled-%d", first+i)}
		}
		if _, err := c.ask(ctx, request(1, entries...)); err != nil {
			t.Fatalf("filling the store: %v", err)
		}
	}
}
