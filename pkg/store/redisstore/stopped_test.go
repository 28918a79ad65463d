package redisstore

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	near "github.com/weirproxy/weir/pkg/store/shared"
	"github.com/weirproxy/weir/test/parts"
)

// stalls are the pauses of this process, which a busy machine makes.
type stalls struct {
	worst   time.Duration
	many    int           // of more than silenceDoubt
	tooLong time.Duration // the longest that a shard had: a busy machine makes Redis slow, too
}

// watchStalls looks at each millisecond until the result is called.
func watchStalls(s *Store, shards int) func() stalls {
	var seen stalls
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			begun := time.Now()
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
			}
			stall := time.Since(begun) - time.Millisecond
			if seen.worst = max(seen.worst, stall); stall > silenceDoubt {
				seen.many++
			}
			for shard := range shards {
				seen.tooLong = max(seen.tooLong, s.queueOf(shard).pulse.tooLong())
			}
		}
	}()
	return func() stalls {
		close(end)
		<-ended
		return seen
	}
}

// crowdCallers is how many ask at the same time with one deadline.
const crowdCallers = 5

// crowd has callers with each deadline, and with none, for each shard.
type crowd struct {
	store   *Store
	front   *near.Store
	shards  int
	callers []*caller
	of      []int // the shard of each caller
}

// newCrowd returns a crowd of which Redis has counted one request of each caller.
func newCrowd(t *testing.T, urls []string, shards int) *crowd {
	t.Helper()
	s := open(t, urls, Options{Timeout: DefaultTimeout})
	c := &crowd{store: s, front: sharing(t, s), shards: shards}
	for _, deadline := range []time.Duration{20 * time.Millisecond, 2 * time.Second, 10 * time.Second, 0} {
		for shard := range shards {
			x := hit("", perAge(algorithms.FixedWindow, 1e9))
			for n := 0; len(x.Key) == 0 || s.Shard(&x) != shard; n++ {
				x.Key = fmt.Appendf(nil, "%v %d", deadline, n)
			}
			settled(t, s, x)
			x.Exact = true
			one := &caller{store: c.front, charge: x, deadline: deadline, failed: func(err error) { t.Errorf("a request failed: %v", err) }}
			one.ask()
			c.callers, c.of = append(c.callers, one), append(c.of, shard)
		}
	}
	c.counted(t, false)
	return c
}

// counted waits until Redis counts all requests of each caller once. If connections may have ended
// with answers under way, Redis may count the unknown hits once more. A call can end after its
// caller, and its hits are unknown only then.
func (c *crowd) counted(t *testing.T, unknown bool) {
	t.Helper()
	told(t, c.store)
	more := uint64(0)
	if unknown {
		more = c.store.Stats().UnknownHits
		t.Logf("%d hits may count twice", more)
	}
	for _, one := range c.callers {
		if got, want := count(t, c.store, one.charge), uint64(one.asked()); got < want || got > want+more {
			t.Errorf("Redis counts %d hits of %d requests of %q, and at most %d may count twice: %+v", got, want, one.charge.Key, more, c.store.Stats())
		}
	}
}

// patient reports whether a caller waits so long that only a timer notices the silence soon. An
// impatient caller misses its deadline, which opens the circuit for all.
func (c *caller) patient() bool { return c.deadline > time.Second }

// begin has the callers that are patient, or are not, ask until the result is called.
func (c *crowd) begin(patient bool) (end func()) {
	stop := make(chan struct{})
	var all sync.WaitGroup
	for _, one := range c.callers {
		if one.patient() != patient {
			continue
		}
		all.Go(func() {
			inTurn(crowdCallers, 10*time.Millisecond)(func() bool {
				select {
				case <-stop:
					return true
				default:
					return false
				}
			}, one.ask)
		})
	}
	return func() {
		close(stop)
		all.Wait()
	}
}

// answered checks how long the callers waited for a shard that was silent.
func (c *crowd) answered(t *testing.T, seen stalls) {
	t.Helper()
	stats := c.front.Stats()
	bound := seen.tooLong + 250*time.Millisecond + 4*seen.worst // a silence takes its timer, a doubt, and the way back
	for i, one := range c.callers {
		slow, slowest := 0, time.Duration(0)
		for ms, n := range one.times.counts {
			if took := time.Duration(ms) * time.Millisecond; took > 250*time.Millisecond {
				slow += n
				slowest = max(slowest, took)
			}
		}
		if slowest > bound {
			t.Errorf("a request waited for %v; want at most %v", slowest, bound)
		}
		// Each opening finds at most the request that each caller has under way.
		if most := crowdCallers * (int(stats.Opened) + seen.many); slow > most {
			t.Errorf("%d requests waited for more than 250ms; want at most %d", slow, most)
		}
		t.Logf("shard %d, deadline %v:%v", c.of[i], one.deadline, &one.times)
	}
	t.Logf("opened %d times, released %d; %+v; at most %v", stats.Opened, stats.Released, seen, bound)
	if stats.Opened == 0 {
		t.Error("no circuit opened")
	}
}

// heap returns the bytes in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// shrinks waits until the memory in use is as before, and a part that the histograms take.
func shrinks(t *testing.T, before int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("the heap of %d bytes is as small as before: %d", heap(), before), func() bool { return heap() < before+2<<20 })
}

// Acknowledged hits of the old primary that no replica has are lost in a failover. So the replicas
// have all hits when the primary stops, and no hit is lost.
func TestNobodyWaitsThroughAFailoverBySentinels(t *testing.T) {
	s := parts.SentinelsFor(t, parts.SentinelOptions{})
	c := newCrowd(t, []string{"redis-sentinel://" + strings.Join(s.Addresses(), ",") + "/" + parts.SentinelName}, 1)
	old := must.Get(s.Primary(parts.Soon(t)))(t)
	copied := must.Get(old.Do(parts.Soon(t), "WAIT", "2", "0"))(t)
	if n := must.Get(copied.AsInt64())(t); n != 2 {
		t.Fatalf("%d replicas have all hits", n)
	}
	before, seen := heap(), watchStalls(c.store, c.shards)
	opened := c.front.Stats().Opened
	must.Do(t, old.Pause(parts.Soon(t)))
	end := c.begin(true)
	eventually(t, "the circuit opens", func() bool { return c.front.Stats().Opened > opened })
	endOthers := c.begin(false)
	_ = must.Get(s.AwaitNewPrimary(parts.Soon(t), old))(t)
	old.Kill() // before it does the calls that it has
	eventually(t, "the new primary decides", func() bool { return c.front.Stats().State == near.Closed })
	end()
	endOthers()
	c.answered(t, seen())
	c.counted(t, true)
	shrinks(t, before)
}

func TestNobodyWaitsThroughAFrozenNodeOfACluster(t *testing.T) {
	for name, together := range map[string]bool{"all callers": true, "long deadlines first": false} {
		t.Run(name, func(t *testing.T) { freezes(t, together) })
	}
}

// frozen is the number of the primary that stops.
const frozen = 1

// freezes stops a node for at least two seconds. Impatient callers come before the stop, or when
// the circuit is open.
func freezes(t *testing.T, together bool) {
	t.Helper()
	nodes := sharedCluster(t)
	c := newCrowd(t, urlOf("redis-cluster", nodes.Addresses()...), 3)
	slot := must.Get(nodes.Slot(parts.Soon(t), c.store.name(&c.callers[frozen].charge)))(t)
	node := must.Get(nodes.PrimaryOf(parts.Soon(t), slot))(t)
	before, seen := heap(), watchStalls(c.store, c.shards)
	end, endOthers := c.begin(true), func() {}
	if together {
		endOthers = c.begin(false)
	}
	must.Do(t, node.Pause(parts.Soon(t)))
	t.Cleanup(func() { _ = node.Continue() })
	begun := time.Now()
	eventually(t, "the circuit of the frozen node is open", func() bool { return c.front.Stats().Shards[frozen].State == near.Open })
	if !together {
		endOthers = c.begin(false)
	}
	for i, one := range c.callers {
		if c.of[i] != frozen {
			counted := count(t, c.store, one.charge)
			eventually(t, "another node goes on", func() bool { return count(t, c.store, one.charge) > counted+10 })
		}
	}
	time.Sleep(2*time.Second - time.Since(begun)) // the silence is far longer than anybody may wait
	must.Do(t, node.Continue())
	eventually(t, "the node decides again", func() bool { return c.front.Stats().State == near.Closed })
	end()
	endOthers()
	c.answered(t, seen())
	c.counted(t, true)
	shrinks(t, before)
}
