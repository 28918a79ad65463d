package memstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestSaveAndLoadRefuseAStoreThatCannot(t *testing.T) {
	plain, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Save(new(bytes.Buffer)); !errors.Is(err, ErrNotSavable) {
		t.Errorf("Save: got %v, want ErrNotSavable", err)
	}
	if _, err := plain.Load(new(bytes.Buffer)); !errors.Is(err, ErrNotSavable) {
		t.Errorf("Load: got %v, want ErrNotSavable", err)
	}
	s := savable(t, Options{})
	defer s.Close()
	take(t, s, "key", benchLimitsOne(), 1)
	if _, err := s.Load(bytes.NewReader(save(t, s))); !errors.Is(err, ErrInUse) {
		t.Errorf("Load into a used store: got %v, want ErrInUse", err)
	}
}

// small returns a snapshot with a state of each algorithm.
func small(t failer) []byte {
	s := savable(t, Options{MaxKeys: 100})
	defer s.Close()
	for i, l := range benchLimits() {
		l.Period = 365 * 24 * time.Hour
		charges := []store.Charge{{Key: fmt.Append(nil, i), Limit: l, Hits: 3}}
		s.takeOne(&charges[0], new(algorithms.Decision))
	}
	holdSome(s)
	s.takeGuarded([]store.Charge{{Key: []byte("offender"), Limit: escalationLimit(1), Hits: 3600, Mode: store.Shadow}}, make([]algorithms.Decision, 1))
	return save(t, s, []byte("a record of another store"), []byte("another one"))
}

// refused loads bytes that are not a snapshot, and then uses the store.
func refused(t *testing.T, snapshot []byte, want error, what string) {
	t.Helper()
	s := savable(t, Options{MaxKeys: 100})
	defer s.Close()
	if _, err := s.Load(bytes.NewReader(snapshot)); !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
	if st := s.Stats(); st.Keys+st.Offenders+st.HoldersHeld+st.HoldersDenied+st.HoldersEnded != 0 || s.metrics.holds.Load() != 0 {
		t.Errorf("%s: %+v is left of the refused snapshot", what, st)
	}
	if d := take(t, s, "0", benchLimitsOne(), 1); !d.Allowed {
		t.Errorf("%s: the store denies the first hit: %+v", what, d)
	}
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	whole := small(t)
	for n := range whole {
		refused(t, whole[:n], ErrSnapshot, fmt.Sprintf("the first %d of %d bytes", n, len(whole)))
		damaged := bytes.Clone(whole)
		damaged[n] ^= 1 << (n % 8)
		want := ErrSnapshot
		if at := len(snapshotMagic); n >= at && n < at+4 {
			want = ErrVersion
		}
		refused(t, damaged, want, fmt.Sprintf("byte %d of %d changed", n, len(whole)))
	}
	refused(t, append(bytes.Clone(whole), 0), ErrSnapshot, "a byte more")
	refused(t, append(bytes.Clone(whole), whole...), ErrSnapshot, "two snapshots")
	newer := bytes.Clone(whole)
	newer[len(snapshotMagic)]++
	refused(t, newer, ErrVersion, "a newer version")

	// Sections that are whole, but of another snapshot or in another order.
	other := small(t)
	one, two := sections(whole), sections(other)
	refused(t, bytes.Join([][]byte{one[0], one[1], two[2], one[len(one)-1]}, nil), ErrSnapshot, "a section of another snapshot")
	one[2], one[3] = one[3], one[2]
	refused(t, bytes.Join(one, nil), ErrSnapshot, "two sections in another order")
}

// Records of another store of any size have a bound.
func TestASnapshotHasABoundOfRecordsBeside(t *testing.T) {
	for _, record := range [][]byte{make([]byte, MaxBesideRecord), make([]byte, 1), nil} {
		s := savable(t, Options{})
		defer s.Close()
		all := slices.Repeat([][]byte{record}, 2*maxBesides)
		if len(record) > 1 {
			all = all[:MaxBeside/len(record)+1]
		}
		refused(t, save(t, s, all...), ErrSnapshot, fmt.Sprintf("%d records of %d bytes", len(all), len(record)))
		_, loaded := restored(t, Options{}, save(t, s, append(all[:10:10], make([]byte, MaxBesideRecord+1))...))
		if len(loaded.Beside) != 10 || !bytes.Equal(loaded.Beside[9], record) {
			t.Errorf("%d records of %d bytes are read, want 10", len(loaded.Beside), len(record))
		}
	}
}

// A program of this version reads the snapshots of the one before, which have no holders.
func TestASnapshotOfTheVersionBeforeIsRead(t *testing.T) {
	s := savable(t, Options{})
	defer s.Close()
	take(t, s, "key", benchLimitsOne(), 7)
	snapshot := save(t, s)
	snapshot[len(snapshotMagic)] = 1
	r, loaded := restored(t, Options{}, snapshot)
	defer r.Close()
	if d := take(t, r, "key", benchLimitsOne(), 0); loaded.Keys != 1 || d.Remaining != 100_000-7 {
		t.Errorf("%+v, then %+v; want one key with 7 hits", loaded, d)
	}
	snapshot[len(snapshotMagic)] = 0
	refused(t, snapshot, ErrVersion, "version 0")
}

// sections cuts a snapshot into its magic with the version, and its sections.
func sections(snapshot []byte) [][]byte {
	at := len(snapshotMagic) + 4
	all := [][]byte{snapshot[:at]}
	for at < len(snapshot) {
		size := 5 + int(binary.LittleEndian.Uint32(snapshot[at+1:])) + 4
		all = append(all, snapshot[at:at+size])
		at += size
	}
	return all
}

// FuzzLoad reads snapshots with right checksums and any content.
func FuzzLoad(f *testing.F) {
	for _, section := range sections(small(f))[1:] {
		f.Add(section[0], section[5:len(section)-4])
	}
	f.Fuzz(func(t *testing.T, kind byte, content []byte) {
		s := savable(t, Options{MaxKeys: 100})
		defer s.Close()
		var b bytes.Buffer
		out := newSnapshotWriter(&b)
		out.head(hashKey{1, 2}, s.now(), 1)
		out.content = append(out.content, content...)
		out.section(kind)
		out.names = 1
		out.end()
		if _, err := s.Load(&b); err != nil {
			return
		}
		for i := range s.shards {
			sh := &s.shards[i]
			if err := sh.checkHolders(); err != nil {
				t.Fatal(err)
			}
			for _, slot := range sh.table.slots {
				if slot.empty() || sh.limits.of(slot.limit()).Algorithm == algorithms.Concurrency {
					continue
				}
				for _, hits := range []int64{0, 1, -1, algorithms.MaxHits} {
					limit := *sh.limits.of(slot.limit())
					var d algorithms.Decision
					if limit.Algorithm.HasState() {
						_, d = algorithms.Take(limit, slot.state, s.now(), hits, true)
					} else {
						d = sh.logs.of(slot.state).Take(limit, s.now(), hits, true)
					}
					if d.Remaining > limit.Capacity() || d.RetryAfter < 0 || d.ResetAfter < 0 {
						t.Fatalf("%+v: %d hits: got %+v", limit, hits, d)
					}
				}
			}
		}
		for i := range s.shards {
			s.sweepShard(&s.shards[i])
		}
	})
}
