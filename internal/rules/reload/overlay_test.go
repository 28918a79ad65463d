package reload_test

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const bucketOfTen = "overlay:\n- for: {domain: shop}\n  set: {algorithm: token_bucket, burst: 10}\n"

// fromPlane returns a document as a control plane sends it.
func fromPlane(domain string, requests int) descriptors.Source {
	return descriptors.Source{Name: "xds:" + domain, Data: []byte(document(domain, requests)), Generated: true}
}

// Each step changes the overlay, or the document of the control plane. Every hit so far counts.
func TestAReloadOfEitherSideOfAnOverlayKeepsCounts(t *testing.T) {
	states := must.Get(memstore.New(memstore.Options{}))(t)
	defer states.Close()
	limits := must.Get(limiter.New(states, limiter.Options{Now: time.Now}))(t)
	file := filepath.Join(t.TempDir(), "overlay.yaml")
	write(t, file, bucketOfTen)
	r := loaderOf(t, limits, file)
	must.Do(t, r.Push(t.Context(), []descriptors.Source{fromPlane("shop", 5), fromPlane("other", 5)}))
	hit := func(n int) limiter.Result {
		var result limiter.Result
		for range n {
			result = must.Get(limits.Allow(t.Context(), "shop", limiter.Entry{Key: "user", Value: "alice"}))(t)
		}
		return result
	}
	if got := hit(3); got.Remaining != 7 {
		t.Errorf("token bucket of 10 after 3 hits: got %+v, want 7 remaining", got)
	}
	must.Do(t, r.Push(t.Context(), []descriptors.Source{fromPlane("shop", 6), fromPlane("other", 5)}))
	if got := hit(1); got.Remaining != 6 {
		t.Errorf("after a push of another number: got %+v, want 6 remaining", got)
	}
	write(t, file, strings.Replace(bucketOfTen, "10", "20", 1))
	must.Do(t, r.Reload(t.Context()))
	if got := hit(1); got.Remaining < 5 || got.Remaining > 6 {
		t.Errorf("after a reload of the overlay: got %+v, want 5 remaining, as tokens stay tokens", got)
	}
	write(t, file, "overlay:\n- for: {domain: shop}\n  set: {algorithm: sliding_window_log}\n")
	must.Do(t, r.Reload(t.Context()))
	if got := hit(1); got.Allowed {
		t.Errorf("after another algorithm: got %+v, want that the used hits carry over", got)
	}
}

func TestABadOverlayKeepsTheOldOneAndAConflictRefusesOneDocument(t *testing.T) {
	states := must.Get(memstore.New(memstore.Options{}))(t)
	defer states.Close()
	limits := must.Get(limiter.New(states, limiter.Options{Now: time.Now}))(t)
	file := filepath.Join(t.TempDir(), "overlay.yaml")
	write(t, file, bucketOfTen)
	r := loaderOf(t, limits, file)
	must.Do(t, r.Push(t.Context(), []descriptors.Source{fromPlane("shop", 5)}))
	algorithm := func() algorithms.Algorithm {
		return limits.Rules().Domain("shop").Match([]descriptors.Entry{{Key: "user", Value: "x"}}).Limits[0].Algorithm
	}
	for _, bad := range []string{"overlay:\n- for: {}\n  set: {}\n", "overlay:\n- for: {domain: shop}\n  set: {align: {to: calendar}}\n"} {
		write(t, file, bad)
		if err := r.Reload(t.Context()); err == nil || algorithm() != algorithms.TokenBucket {
			t.Errorf("overlay %q: got %v and %v in force, want a refusal and token_bucket", bad, err, algorithm())
		}
	}
	write(t, file, "overlay:\n- for: {domain: sh*}\n  set: {algorithm: sliding_window_log}\n")
	must.Do(t, r.Reload(t.Context()))
	err := r.Push(t.Context(), []descriptors.Source{fromPlane("shop", 20_000), fromPlane("other", 6)})
	if err == nil || !strings.HasPrefix(err.Error(), "xds:shop: ") || requests(limits, "other") != 6 || requests(limits, "shop") != 5 {
		t.Errorf("a push above the bound of a log: got %v, %d and %d; want xds:shop refused alone", err, requests(limits, "shop"), requests(limits, "other"))
	}
}

// Neither the new overlay fits the old document, nor the new document the old overlay. Whichever
// comes last brings both into force. Before that the old ones stay.
func TestAnOverlayAndADocumentThatFitOnlyEachOtherComeIntoForceTogether(t *testing.T) {
	const logOfTen = "overlay:\n- for: {domain: shop}\n  set: {algorithm: sliding_window_log}\n"
	for _, overlayFirst := range []bool{true, false} {
		states := must.Get(memstore.New(memstore.Options{}))(t)
		defer states.Close()
		limits := must.Get(limiter.New(states, limiter.Options{Now: time.Now}))(t)
		file := filepath.Join(t.TempDir(), "overlay.yaml")
		write(t, file, "overlay:\n- for: {domain: shop}\n  set: {align: {to: calendar, zone: UTC, day: 15}}\n")
		r := loaderOf(t, limits, file)
		monthly, hourly := fromPlane("shop", 20_000), fromPlane("shop", 5) // too many for a log, and no month for the calendar
		monthly.Data = []byte(strings.Replace(string(monthly.Data), "hour", "month", 1))
		must.Do(t, r.Push(t.Context(), []descriptors.Source{monthly}))
		changes := []func() error{
			func() error { write(t, file, logOfTen); return r.Reload(t.Context()) },
			func() error { return r.Push(t.Context(), []descriptors.Source{hourly}) },
		}
		if !overlayFirst {
			slices.Reverse(changes)
		}
		if err := changes[0](); err == nil || requests(limits, "shop") != 20_000 {
			t.Errorf("overlay first %t: got %v and %d requests, want a refusal and the old rules", overlayFirst, err, requests(limits, "shop"))
		}
		if err := changes[1](); err != nil {
			t.Errorf("overlay first %t: got %v, want none", overlayFirst, err)
		}
		limit := limits.Rules().Domain("shop").Match([]descriptors.Entry{{Key: "user", Value: "x"}}).Limits[0]
		if limit.Requests != 5 || limit.Algorithm != algorithms.SlidingWindowLog || len(r.Status().Errors) > 0 {
			t.Errorf("overlay first %t: got %+v and the mistakes %q, want both new ones", overlayFirst, limit, r.Status().Errors)
		}
		if err := r.Push(t.Context(), []descriptors.Source{hourly}); err != nil {
			t.Errorf("overlay first %t: the same push once more: got %v", overlayFirst, err)
		}
	}
}

// loaderOf returns a Reloader of an overlay, for pushed documents.
func loaderOf(t *testing.T, l *limiter.Limiter, file string) *reload.Reloader {
	t.Helper()
	r := must.Get(reload.New(reload.Options{Limiter: l, Paths: []string{file}, Pushed: true, Logger: slog.New(slog.DiscardHandler)}))(t)
	must.Do(t, r.Load(t.Context()))
	return r
}
