package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/promise"
)

// outcome is the end of a request as its client saw it.
type outcome uint8

const (
	allowed outcome = iota
	denied
	failed    // a gRPC error, or no answer
	unreached // there was no connection to the sidecar
)

// exchange is a request and its answer, by the clock of the client.
type exchange struct {
	sent, received time.Time
	keys           []int
	outcome        outcome
}

// outage is when a fault began and ended. The zero value: there was none.
type outage struct{ began, ended time.Time }

// verdict is a judgment on a fleet, by the times of requests and answers alone.
type verdict struct {
	asked, admitted int
	over            int     // hits admitted beyond the promises, of all keys: a lower bound
	overShare       float64 // percent of the hits that one process would have admitted
	worst           float64 // the same of the key with most
	worstKey        int
	worstOver       int     // hits of that key: of a key with few hits one hit is many percent
	during, after   float64 // percent of the hits that one process would have admitted and the fleet denied
	lacks, lacksKey int     // hits of the key that lacks most during the fault, or after it
	recovery        time.Duration
	errors          int
	unreached       int
	late            int // answers after the deadline that the request named
	slowest         time.Duration
}

const (
	// slice is how finely recovery is told. Over a span of slices the fleet must admit most of the
	// hits that one process would have admitted.
	slice       = 100 * time.Millisecond
	span        = 5    // slices
	recovered   = 0.95 // of the hits of a span
	neverWithin = -1   // the recovery of a fleet that has not recovered
)

// judge returns the verdict on a run with a timeout in each request; 0: none. Requests without a
// verdict count as errors alone: they may have been charged, so over is a lower bound.
func judge(limits []algorithms.Limit, run []exchange, o outage, timeout time.Duration) verdict {
	v := verdict{asked: len(run)}
	history := make([]promise.Request, 0, len(run))
	for i := range run {
		e := &run[i]
		took := e.received.Sub(e.sent)
		switch e.outcome {
		case failed:
			v.errors++
		case unreached:
			v.unreached++
		case allowed, denied:
			v.admitted += one(e.outcome == allowed)
			if v.slowest = max(v.slowest, took); took > timeout && timeout > 0 {
				v.late++
			}
			history = append(history, promise.Request{
				Sent: e.sent.UnixNano(), Received: e.received.UnixNano(), Keys: e.keys, Admitted: e.outcome == allowed,
			})
		}
	}
	expected := 0
	for key, c := range promise.Judge(limits, history, 0) {
		v.over, expected = v.over+c.Over, expected+c.Expected
		if part := percent(c.Over, c.Expected); part > v.worst {
			v.worst, v.worstKey, v.worstOver = part, key, c.Over
		}
	}
	v.overShare = percent(v.over, expected)
	last := int64(0)
	for i := range history {
		last = max(last, history[i].Sent+1)
	}
	should := promise.Replay(limits, history)
	if o == (outage{}) {
		v.after = v.missing(len(limits), history, should, 0, last)
		return v
	}
	began, ended := o.began.UnixNano(), o.ended.UnixNano()
	v.during = v.missing(len(limits), history, should, began, ended)
	v.after = v.missing(len(limits), history, should, ended, last)
	v.recovery = recovery(history, should, ended, last)
	return v
}

// missing returns the percentage of the hits in a span of time that one process would have admitted
// and the fleet denied. A key with too many admitted hits makes up for no other key. missing notes
// the key that lacks most.
func (v *verdict) missing(keys int, history []promise.Request, should []bool, from, to int64) float64 {
	admitted, expected := make([]int, keys), make([]int, keys)
	for i := range history {
		if r := &history[i]; r.Sent >= from && r.Sent < to {
			for _, key := range r.Keys {
				admitted[key] += one(r.Admitted)
				expected[key] += one(should[i])
			}
		}
	}
	lacks, all := 0, 0
	for key := range expected {
		lack := max(0, expected[key]-admitted[key])
		if lack > v.lacks {
			v.lacks, v.lacksKey = lack, key
		}
		lacks += lack
		all += expected[key]
	}
	return percent(lacks, all)
}

// recovery returns the time from the end of a fault to the first span with most of the hits of one
// process.
func recovery(history []promise.Request, should []bool, from, last int64) time.Duration {
	slices := int((last - from) / int64(slice))
	admitted, expected := make([]int, slices+1), make([]int, slices+1)
	for i := range history {
		if r := &history[i]; r.Sent >= from && r.Sent < from+int64(slices)*int64(slice) {
			n := int((r.Sent - from) / int64(slice))
			admitted[n] += one(r.Admitted)
			expected[n] += one(should[i])
		}
	}
	for first := 0; first+span <= slices; first++ {
		got, want := 0, 0
		for n := first; n < first+span; n++ {
			got, want = got+admitted[n], want+expected[n]
		}
		if float64(got) >= recovered*float64(want) {
			return time.Duration(first) * slice
		}
	}
	return neverWithin
}

// hold is a request that held a slot, by the clock of its client. The hold is certain from the
// answer to the begin until the end was sent.
type hold struct {
	key      int
	from, to time.Time
}

// crowd returns the most requests above a limit that were in flight at once, and how long requests
// above a limit were.
func crowd(limits []algorithms.Limit, holds []hold) (most int, long time.Duration) {
	type step struct {
		at    time.Time
		key   int
		moves int
	}
	steps := make([]step, 0, 2*len(holds))
	for _, h := range holds {
		if h.from.Before(h.to) {
			steps = append(steps, step{h.from, h.key, 1}, step{h.to, h.key, -1})
		}
	}
	slices.SortFunc(steps, func(x, y step) int {
		return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.moves, y.moves))
	})
	in, since := make([]int, len(limits)), make([]time.Time, len(limits))
	for _, s := range steps {
		limit := int(limits[s.key].Requests)
		before := in[s.key]
		in[s.key] += s.moves
		switch {
		case before <= limit && in[s.key] > limit:
			since[s.key] = s.at
		case before > limit && in[s.key] <= limit:
			long += s.at.Sub(since[s.key])
		}
		most = max(most, in[s.key]-limit)
	}
	return most, long
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// percent returns the share of a part, in percent; 0 of nothing.
func percent(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}
