package memstore

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// millionKeys returns a savable store of a million keys of all algorithms but sliding_window_log.
func millionKeys(b *testing.B) *Store {
	b.Helper()
	s, err := New(Options{MaxKeys: 1_100_000, Savable: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	limits := slices.DeleteFunc(benchLimits(), func(l algorithms.Limit) bool { return !l.Algorithm.HasState() })
	key := make([]byte, 16)
	charges := []store.Charge{{Key: key, Hits: 1}}
	for n := range uint64(1_000_000) {
		binary.LittleEndian.PutUint64(key, n)
		charges[0].Limit = limits[n%uint64(len(limits))]
		s.takeOne(&charges[0], new(algorithms.Decision))
	}
	return s
}

// cpu reports the time of the processor per operation, which other processes of the machine hardly
// change.
func cpu(b *testing.B) (done func()) {
	b.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

// BenchmarkSave writes a million keys, to nowhere.
func BenchmarkSave(b *testing.B) {
	s := millionKeys(b)
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if _, err := s.Save(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLoad reads a million keys.
func BenchmarkLoad(b *testing.B) {
	var snapshot bytes.Buffer
	if _, err := millionKeys(b).Save(&snapshot); err != nil {
		b.Fatal(err)
	}
	defer func() { b.ReportMetric(float64(snapshot.Len())/1e6, "B/key") }()
	defer cpu(b)()
	for b.Loop() {
		s, err := New(Options{MaxKeys: 1_100_000, Savable: true})
		if err != nil {
			b.Fatal(err)
		}
		if loaded, err := s.Load(bytes.NewReader(snapshot.Bytes())); err != nil || loaded.Keys != 1_000_000 {
			b.Fatal(loaded, err)
		}
		s.Close()
	}
}

// BenchmarkDecisionsWhileSaving is a decision on random keys of a million, alone and while
// snapshots are written all the time.
func BenchmarkDecisionsWhileSaving(b *testing.B) {
	for _, saving := range []bool{false, true} {
		b.Run(map[bool]string{false: "alone", true: "saving"}[saving], func(b *testing.B) {
			s := millionKeys(b)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for saving {
					select {
					case <-stop:
						return
					default:
						_, _ = s.Save(io.Discard)
					}
				}
			}()
			limits := slices.DeleteFunc(benchLimits(), func(l algorithms.Limit) bool { return !l.Algorithm.HasState() })
			key := make([]byte, 16)
			charges := []store.Charge{{Key: key, Hits: 1}}
			next, took := random(5), make([]time.Duration, 0, 1<<20)
			for b.Loop() {
				n := next() % 1_000_000
				binary.LittleEndian.PutUint64(key, n)
				charges[0].Limit = limits[n%uint64(len(limits))]
				start := time.Now()
				s.takeOne(&charges[0], new(algorithms.Decision))
				took = append(took, time.Since(start))
			}
			close(stop)
			<-stopped
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*999/1000]), "p99.9-ns")
			b.ReportMetric(float64(took[len(took)-1]), "max-ns")
		})
	}
}

// BenchmarkSavable is a decision on one key, in a store that can be saved and in one that cannot.
func BenchmarkSavable(b *testing.B) {
	for _, o := range []struct {
		name    string
		savable bool
	}{{"no", false}, {"yes", true}} {
		b.Run(o.name, func(b *testing.B) {
			s, err := New(Options{Savable: o.savable})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			charges := []store.Charge{{Key: benchKey(1), Limit: benchLimitsOne(), Hits: 1}}
			decisions := make([]algorithms.Decision, 1)
			b.ReportAllocs()
			defer cpu(b)()
			for b.Loop() {
				_, _ = store.Take(b.Context(), s, charges, decisions)
			}
		})
	}
}
