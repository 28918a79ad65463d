package main

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/bench/drive"
)

const (
	domain = "histories"
	tick   = 4 * time.Millisecond
	// mostOpen is how many requests a client has open. A sidecar that stands still gets no more.
	mostOpen = 2000
	// longest is how long a client waits for its last answers.
	longest = 10 * time.Second
)

// traffic is the requests for each sidecar.
type traffic struct {
	rate   int // requests per second for each sidecar
	length time.Duration
	life   time.Duration // of a key with a count
	seed   uint64
}

// A lease needs a key that a sidecar asks 40 times a second.
const leaseRate = 45

// keys returns how many keys of a class get requests at a time.
func (t *traffic) keys(c class) int {
	if c == countExact {
		return 16
	}
	return max(1, t.rate/int(classes)/leaseRate)
}

// limits returns limits that keys reach: a count after half of a key's life. The others admit a
// fifth of the requests, so that one sidecar without a limit would break the limit of all.
func (t *traffic) limits(sidecars int) (all [classes]uint32) {
	for c := range classes {
		perSecond := float64(t.rate*sidecars) / float64(classes) / float64(t.keys(c))
		if c.counts() {
			perSecond *= t.life.Seconds() // two hits a request on average
		} else {
			perSecond /= 5
		}
		all[c] = max(4, uint32(perSecond))
	}
	return all
}

// asked is the key and the hits of a request.
type asked struct {
	key  int32
	hits uint8
}

// choose returns a request at a time since the start. A class has some keys at a time, and keys
// with a count are new after their life.
func (t *traffic) choose(n int, since time.Duration, r *rand.Rand) asked {
	c := class(n % int(classes))
	slot, hits := r.IntN(t.keys(c)), 1
	if c.counts() {
		slot += int(since/t.life) * t.keys(c)
		hits = 1 + r.IntN(3)
	}
	return asked{int32(slot*int(classes) + int(c)), uint8(hits)}
}

// encode returns the request.
func (a asked) encode() ([]byte, error) {
	return proto.Marshal(&ratelimitv3.RateLimitRequest{
		Domain: domain,
		Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{
			{Key: class(a.key % int32(classes)).String(), Value: "k" + strconv.Itoa(int(a.key))},
		}}},
		HitsAddend: uint32(a.hits),
	})
}

// run asks all sidecars until the length is over, and returns the operations in the order of their
// requests.
func (t *traffic) run(ctx context.Context, addresses []string) ([]op, error) {
	begun := time.Now()
	each, errs := make([][]op, len(addresses)), make([]error, len(addresses))
	var clients sync.WaitGroup
	for i, address := range addresses {
		clients.Go(func() { each[i], errs[i] = t.client(ctx, address, uint8(i), begun) })
	}
	clients.Wait()
	all := slices.Concat(each...)
	slices.SortStableFunc(all, func(x, y op) int { return cmp.Compare(x.sent, y.sent) })
	return all, errors.Join(append(errs, context.Cause(ctx))...)
}

// client asks one sidecar.
func (t *traffic) client(ctx context.Context, address string, sidecar uint8, begun time.Time) ([]op, error) {
	recorder := drive.NewRecorder(address, 0, drive.ShouldRateLimit())
	staying, end := context.WithCancel(ctx)
	defer end()
	var reading sync.WaitGroup
	reading.Go(func() { recorder.Stay(staying) })
	recorder.AwaitConnection(ctx)
	var of []asked
	var tags []int32
	var requests [][]byte
	random := rand.New(rand.NewPCG(t.seed, uint64(sidecar))) //nolint:gosec // a history that can be chosen again
	n := 0
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for ctx.Err() == nil {
		<-clock.C
		since := time.Since(begun)
		if since >= t.length {
			break
		}
		tags, requests = tags[:0], requests[:0]
		for due := int(since.Seconds() * float64(t.rate)); n < due; n++ {
			if len(tags) == batch || recorder.Waiting()+len(tags) >= mostOpen {
				n = due // the rest is never asked
				break
			}
			a := t.choose(n, since, random)
			request, err := a.encode()
			if err != nil {
				return nil, err
			}
			tags, requests, of = append(tags, int32(len(of))), append(requests, request), append(of, a)
		}
		if len(tags) > 0 {
			recorder.Send(tags, requests)
		}
	}
	for until := time.Now().Add(longest); recorder.Waiting() > 0 && time.Now().Before(until) && ctx.Err() == nil; {
		<-clock.C
	}
	end()
	reading.Wait()
	records, _ := recorder.Records() // answers that are errors are in the records, too
	all := make([]op, len(records))
	for i, r := range records {
		a := of[r.Tag]
		all[i] = op{r.Sent, r.Received, a.key, a.hits, sidecar, r.Result}
	}
	return all, nil
}

// batch is the most requests of one write.
const batch = 300
