package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/test/parts"
)

// random returns a scene of many operations.
func random(ops int) *scene {
	r := rand.New(rand.NewPCG(1, 2))
	s := &scene{
		Name: "random", Sidecars: sidecars, Limits: [classes]uint32{2, 3, 4, 5, 6, 7},
		Faults: []fault{{1, 2, 3, -1, 4}}, Slow: time.Second, Ops: ops,
	}
	at := int64(1_800_000_000_000_000_000)
	for range ops {
		at += r.Int64N(1e6)
		s.ops = append(s.ops, op{
			at, at + r.Int64N(1e9), r.Int32N(1 << 20), uint8(1 + r.IntN(3)), uint8(r.IntN(sidecars)),
			[]drive.Result{drive.Allowed, drive.Denied, drive.Failed, drive.Unreached}[r.IntN(4)],
		})
	}
	return s
}

func TestAFileHasTheHistoriesAsTheyWereRecorded(t *testing.T) {
	var file bytes.Buffer
	want := []*scene{random(10_000), random(0)}
	for _, s := range want {
		if err := s.write(&file); err != nil {
			t.Fatal(err)
		}
	}
	in := bufio.NewReader(&file)
	for _, s := range want {
		got, err := readScene(in)
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != s.Name || got.Limits != s.Limits || !slices.Equal(got.Faults, s.Faults) || !slices.Equal(got.ops, s.ops) {
			t.Fatalf("%s: got %d operations; want the scene as it was", s.Name, len(got.ops))
		}
	}
	if _, err := readScene(in); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: got %v", err)
	}
}

func TestAFileThatIsCutIsAnError(t *testing.T) {
	var file bytes.Buffer
	if err := random(10).write(&file); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < file.Len(); n++ {
		if _, err := readScene(bufio.NewReader(bytes.NewReader(file.Bytes()[:n]))); err == nil {
			t.Fatalf("%d of %d bytes: got no error", n, file.Len())
		}
	}
	path := filepath.Join(t.TempDir(), "x.gz")
	if err := os.WriteFile(path, []byte("no gzip"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check"}, {"check", path}, {"check", path + "x"}, {"-scenes", "none"}, {"-operations", "1"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}

func FuzzReadScene(f *testing.F) {
	var file bytes.Buffer
	if err := random(5).write(&file); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := readScene(bufio.NewReader(bytes.NewReader(text)))
		if err == nil && len(s.ops) < 1000 {
			s.check()
		}
	})
}

// TestTheCountOfAModelHoldsAllCounts compares the model, which has the least and the most hits,
// with the set of all hits that a key may have.
func TestTheCountOfAModelHoldsAllCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const limit = 9
	exact := 0
	for range 100_000 {
		n, set := count{}, map[int]bool{0: true}
		single := r.IntN(2) == 0
		for range 15 {
			a := answer{hits: 1, allowed: r.IntN(2) == 0, maybe: r.IntN(3) == 0}
			if !single {
				a.hits += r.IntN(3)
			}
			next := make(map[int]bool)
			for c := range set {
				fits := c+a.hits <= limit
				switch {
				case a.allowed && fits, a.maybe && !a.allowed && fits:
					next[c+a.hits] = true
				case !a.allowed && !fits:
					next[c] = true
				}
				if a.maybe && !a.allowed {
					next[c] = true
				}
			}
			ok, after := n.step(a, limit)
			if len(next) > 0 && !ok || single && ok != (len(next) > 0) {
				t.Fatalf("%+v after %+v: got %v; the set %v becomes %v", a, n, ok, set, next)
			}
			for c := range next {
				if c < after.least || c > after.most {
					t.Fatalf("%+v after %+v: got %+v, without %d", a, n, after, c)
				}
			}
			if !ok {
				exact++
				break
			}
			if n, set = after, next; len(next) == 0 {
				break
			}
		}
	}
	if exact == 0 {
		t.Error("no answer was impossible")
	}
}

// TestAFleetKeepsItsPromises is a short form of the whole program, against real sidecars and Redis.
func TestAFleetKeepsItsPromises(t *testing.T) {
	const each = 16 // seconds: one fault, and the time to settle
	root := parts.RootFor(t)
	o := options{rate: 1000, scenes: kinds()}
	o.operations = each * o.rate * len(o.scenes)
	o.redis = parts.NeedRedis(t, root)
	var err error
	if o.programs.sidecar, err = program.Sidecar(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	for _, k := range o.scenes {
		if k.name != "partition" && k.name != "steady" { // the others need a quiet machine
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			recorded, err := o.record(t.Context(), &k)
			if err != nil {
				t.Fatal(err)
			}
			var file bytes.Buffer
			if err := recorded.write(&file); err != nil {
				t.Fatal(err)
			}
			s, err := readScene(bufio.NewReader(&file))
			if err != nil {
				t.Fatal(err)
			}
			if len(s.ops) < each*o.rate/2 || len(s.Faults) != min(1, len(recorded.Faults)) || (len(s.Faults) == 0) != (k.happen == nil) {
				t.Errorf("%d operations and %d faults", len(s.ops), len(s.Faults))
			}
			v := s.check()
			for _, x := range v.violations {
				t.Errorf("%v, key %d: %s", x.class, x.key, x.text)
			}
			t.Logf("%d operations, %d judged exactly, %d slow spans", v.operations, v.exact, v.slow)
		})
	}
}
