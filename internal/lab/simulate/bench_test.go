package simulate

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
)

// BenchmarkSimulate reads requests of few and of many clients from a file, and decides them. The
// result is processor time of all goroutines.
func BenchmarkSimulate(b *testing.B) {
	for _, clients := range []int{10_000, 10_000_000} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) { benchmarkSimulate(b, clients) })
	}
}

func benchmarkSimulate(b *testing.B, clients int) {
	b.Helper()
	const many = 4_000_000
	r := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(b.TempDir(), "record.jsonl")
	f := must.Get(os.Create(path))(b)
	out := bufio.NewWriter(f)
	var line []byte
	for i := range many { // of a day
		line = records.Append(line[:0], &records.Record{At: start + algorithms.Instant(i)*algorithms.Instant(24*time.Hour/many), Request: limiter.Request{
			Domain: "edge", Descriptors: []limiter.Descriptor{{Entries: []limiter.Entry{
				{Key: "path", Value: "/search"}, {Key: "client_id", Value: fmt.Sprint("client-", r.IntN(clients))},
			}}},
		}})
		_, _ = out.Write(line) // Flush has the error
	}
	must.Do(b, errors.Join(out.Flush(), f.Close()))
	const rules = "domain: edge\ndescriptors:\n- key: path\n  value: /search\n  descriptors:\n  - {key: client_id, rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 6}}\n"
	n, denied := 0, uint64(0)
	before := processorTime(b)
	for b.Loop() {
		s := simulation(b, Options{}, rules)
		traffic := must.Get(records.Open(b.Context(), []string{path}, nil))(b)
		for record, err := range traffic.All() {
			if err != nil {
				b.Fatal(err)
			}
			s.Decide(record)
			n++
		}
		traffic.Close()
		denied += s.Result().Denied
	}
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(n), "cpu-ns/request")
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric(100*float64(denied)/float64(n), "%denied")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	must.Do(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano())
}
