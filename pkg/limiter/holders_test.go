package limiter_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
)

func TestHoldersAreListedForEachLimit(t *testing.T) {
	f, n := newNoting(t)
	n.held = []store.Held{{Holder: store.HolderOf([]byte("r1")), Hits: 3}}
	rule, all, err := f.Holders(t.Context(), "edge", []limiter.Entry{{Key: "tenant", Value: "a"}}, 5)
	if err != nil || rule.Path != "tenant" || len(all) != 2 {
		t.Fatalf("Holders = %v, %+v, %v", rule, all, err)
	}
	for i, key := range []string{"4:edge|6:tenant=1:a#token_bucket/1m", "4:edge|6:tenant=1:a#token_bucket/1h"} {
		if h := all[i]; h.Key != key || !h.Listed || h.All != 1 || !slices.Equal(h.Held, n.held) {
			t.Errorf("limit %d: got %+v", i, h)
		}
		if want := "list " + key + " 5"; n.lines[i] != want {
			t.Errorf("call %d: got %q; want %q", i, n.lines[i], want)
		}
	}
	n.err = store.ErrNotListed
	if _, all, err = f.Holders(t.Context(), "edge", []limiter.Entry{{Key: "tenant", Value: "a"}, {Key: "done", Value: "x"}}, 5); err != nil || all[0].Listed || len(all) != 2 {
		t.Errorf("a store that does not list: got %+v, %v", all, err)
	}
	n.err = errors.New("broken")
	if _, _, err = f.Holders(t.Context(), "edge", []limiter.Entry{{Key: "tenant", Value: "a"}}, 5); !errors.Is(err, n.err) {
		t.Errorf("a broken store: got the error %v", err)
	}
	for name, entries := range map[string][]limiter.Entry{"no rule": {{Key: "other"}}, "a rule without holders": {{Key: "vip", Value: "x"}}, "none": nil} {
		if _, _, err := f.Holders(t.Context(), "edge", entries, 5); !errors.Is(err, limiter.ErrNoHolders) {
			t.Errorf("%s: got the error %v; want %v", name, err, limiter.ErrNoHolders)
		}
	}
	if _, _, err := f.Holders(t.Context(), "elsewhere", []limiter.Entry{{Key: "tenant"}}, 5); !errors.Is(err, limiter.ErrNoHolders) {
		t.Errorf("no such domain: got the error %v", err)
	}
}

func TestReleaseCancelsAtEachLimit(t *testing.T) {
	f, n := newNoting(t)
	r1 := store.HolderOf([]byte("r1"))
	n.was[r1] = algorithms.Hold{Status: algorithms.HoldHeld, Hits: 3}
	all, err := f.Release(t.Context(), "edge", []limiter.Entry{{Key: "tenant", Value: "a"}}, r1)
	if err != nil || len(all) != 2 || all[0].Hold.Was.Hits != 3 {
		t.Fatalf("Release = %+v, %v", all, err)
	}
	want := []string{
		"4:edge|6:tenant=1:a#token_bucket/1m hits=0 exact cancel r1 10m0s",
		"4:edge|6:tenant=1:a#token_bucket/1h hits=0 exact cancel r1 20m0s",
	}
	if diff := cmp.Diff(want, n.lines); diff != "" {
		t.Errorf("charges (-want +got):\n%s", diff)
	}
	if got := holdTally(f, "tenant"); got != (limiter.HoldTally{Released: 1}) {
		t.Errorf("a release counts as %+v", got)
	}
	if _, err := f.Release(t.Context(), "edge", []limiter.Entry{{Key: "vip", Value: "a"}}, r1); !errors.Is(err, limiter.ErrNoHolders) {
		t.Errorf("no holders: got the error %v", err)
	}
}

func TestResetNeedsNoHolder(t *testing.T) {
	want := []string{"4:edge|6:tenant=1:a#token_bucket/1h", "4:edge|6:tenant=1:a#token_bucket/1m", "4:edge|6:tenant=1:a#token_bucket/1s"}
	for _, text := range []string{"tenant=a", "tenant=a,request=r1", "tenant=a,done=r1"} {
		f, n := newNoting(t)
		keys, forgotten, err := f.Reset(t.Context(), request("edge", text))
		slices.Sort(keys)
		if err != nil || forgotten != 3 || !slices.Equal(keys, want) || len(n.lines) != 3 {
			t.Errorf("%s: Reset = %v, %d, %v; want %v", text, keys, forgotten, err, want)
		}
	}
}

func TestExplainShowsTheHolderAndTheOthers(t *testing.T) {
	f, n := newNoting(t)
	n.held = []store.Held{{Holder: store.HolderOf([]byte("r2")), Hits: 3}}
	n.was[store.HolderOf([]byte("r1"))] = algorithms.Hold{Status: algorithms.HoldHeld, Hits: 4}
	all, err := f.Explain(t.Context(), request("edge", "tenant=a,request=r1"))
	if err != nil || len(all[0].Limits) != 3 {
		t.Fatalf("Explain = %+v, %v", all, err)
	}
	for i, limit := range all[0].Limits {
		switch holds := i != 1; {
		case holds && (limit.Hold.Was.Hits != 4 || limit.Holders.All != 1 || limit.Holders.Held[0].Hits != 3):
			t.Errorf("limit %d: got %+v", i, limit)
		case !holds && (limit.Hold != nil || limit.Holders != nil):
			t.Errorf("a limit without holders: got %+v", limit)
		}
	}
}
