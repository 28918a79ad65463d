package server

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// quotaFleet is streams without a connection, each with the same buckets.
type quotaFleet struct {
	*quotas

	all     []*quotaStream
	reports []*rlqsv3.RateLimitQuotaUsageReports // of each stream
	bytes   int64                                // of all assignments
}

func newQuotaFleet(b *testing.B, streams, buckets int) *quotaFleet {
	b.Helper()
	s := must.Get(memstore.New(memstore.Options{}))(b)
	b.Cleanup(s.Close)
	l := must.Get(limiter.New(s, limiter.Options{}))(b)
	l.SetRules(load(b, quotaRules))
	f := &quotaFleet{quotas: newQuotas(&Options{Limiter: l, Logger: slog.New(slog.DiscardHandler)})}
	f.streams[0] = nil // so that no goroutine steps
	for i := range streams {
		s := &quotaStream{
			of: f.quotas, mark: uint64(i + 1), members: make(map[string]*member), wake: make(chan struct{}, 1), received: make(chan error, 1),
		}
		must.Do(b, f.open(s))
		f.all = append(f.all, s)
		r := &rlqsv3.RateLimitQuotaUsageReports{Domain: "edge"}
		for j := range buckets {
			id := bucketID("tenant", fmt.Sprint("tenant-", j))
			r.BucketQuotaUsages = append(r.BucketQuotaUsages, &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: id, NumRequestsAllowed: 1})
		}
		f.reports = append(f.reports, r)
	}
	delete(f.streams, 0)
	return f
}

// pass lets time pass, and acknowledges all assignments.
func (f *quotaFleet) pass(b *testing.B, d time.Duration) {
	b.Helper()
	f.begun = f.begun.Add(-d)
	f.step()
	for _, s := range f.all {
		if all, _ := s.take(); len(all) > 0 {
			data := must.Get(encodeAssignments(all))(b)
			s.note(all, len(data))
			f.bytes += int64(len(data))
			f.arrived(s.mark, s.sent)
		}
	}
}

// report lets a stream report that in five seconds its buckets had a number of requests.
func (f *quotaFleet) report(b *testing.B, stream int, n uint64) {
	b.Helper()
	for _, u := range f.reports[stream].GetBucketQuotaUsages() {
		u.NumRequestsAllowed = n
	}
	must.Do(b, f.all[stream].report(f.reports[stream]))
}

// BenchmarkQuotas is the work for all Envoys in five seconds: one report of each, all steps, and
// all assignments. HTTP/2 and protobuf of reports are not in it.
func BenchmarkQuotas(b *testing.B) {
	const ticks = int(5 * time.Second / quotaTick)
	for _, c := range []struct{ streams, buckets int }{{1, 10}, {1, 100}, {1, 1000}, {10, 1}, {10, 100}, {10, 1000}, {100, 1}, {100, 100}} {
		b.Run(fmt.Sprintf("streams=%d/buckets=%d", c.streams, c.buckets), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			f := newQuotaFleet(b, c.streams, c.buckets)
			round := func(n int) {
				for tick := range ticks {
					for i := tick; i < c.streams; i += ticks {
						f.report(b, i, []uint64{1, 100, 1000, 10}[(i+n)%4]) // some want more each time
					}
					f.pass(b, quotaTick)
				}
			}
			for n := range 3 {
				round(n)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ResetTimer()
			f.bytes = 0
			for n := 0; b.Loop(); n++ {
				round(n)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/5/float64(c.streams), "ns/envoy-second")
			b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/float64(c.streams*c.buckets), "B/bucket")
			b.ReportMetric(float64(f.bytes)/float64(b.N)/5/float64(c.streams), "sent-B/envoy-second")
			runtime.KeepAlive(f)
		})
	}
}
