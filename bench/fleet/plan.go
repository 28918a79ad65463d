package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// domain is the domain of all rules.
const domain = "fleet"

// The loads of keys, as parts of their limits. One process never denies a client with a part of
// its limit.
const (
	halfLoad   = 0.5
	fullLoad   = 1.6
	partlyLoad = 0.9
	dayLoad    = 1.5
)

// The limits and the rates of a course with the scale 1.
const (
	perSecond = 200
	slowRate  = 10 // of a bucket with a burst of ten seconds
	dayRate   = 40 // requests per second for each limit of a day
)

// key is a limit and the requests per second of all clients for it.
type key struct {
	name  string // of the rule's descriptor key
	limit algorithms.Limit
	rate  float64
	also  int // number of a key that each request charges too, in another slot of a cluster; -1: none
}

// due is a request at an instant after the start, for a sidecar.
type due struct {
	at  time.Duration
	key int
}

// plan is the keys of a run and its requests.
type plan struct {
	keys    []key
	encoded [][]byte
	charged [][]int // by a request for the key
	length  time.Duration
	partly  int // the key with a limit of a day that is not reached
}

// newPlan returns the requests of a run. Each algorithm has a key with half of its load and one
// with more than its limit. Of the limits of a day one is not reached. scale multiplies limits and
// requests, and times the requests of keys that are over their limits. With several, requests of
// keys with half of their load also charge a wide limit, in another slot of a cluster.
func newPlan(length time.Duration, scale, times float64, several bool) (*plan, error) {
	p := &plan{length: length}
	add := func(name string, l algorithms.Limit, rate float64) {
		p.keys = append(p.keys, key{name: name, limit: l, rate: rate, also: -1})
	}
	for _, a := range algorithms.RateAlgorithms() {
		l := algorithms.Limit{Algorithm: a, Requests: uint32(scale * perSecond), Period: time.Second}
		if a == algorithms.TokenBucket {
			l.Burst = l.Requests
		}
		add(a.String()+"_half", l, scale*halfLoad*perSecond)
		add(a.String()+"_full", l, scale*fullLoad*perSecond*times)
	}
	add("slow", algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: slowRate, Period: time.Second, Extra: algorithms.Extra{Burst: 10 * slowRate}}, halfLoad*slowRate)
	const day = 24 * time.Hour
	asked := scale * dayRate * length.Seconds()
	all := uint32(asked / dayLoad)
	add("day", algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: all, Period: day}, scale*dayRate)
	add("day_bucket", algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: all, Period: day, Extra: algorithms.Extra{Burst: all}}, scale*dayRate)
	p.partly = len(p.keys)
	add("day_partly", algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(asked / partlyLoad), Period: day}, scale*dayRate)
	if several {
		wide := len(p.keys)
		add("wide", algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1e9, Period: day}, 0)
		for i := range p.keys[:wide] {
			if strings.HasSuffix(p.keys[i].name, "_half") {
				p.keys[i].also = wide
			}
		}
	}
	for i := range p.keys {
		charged, descriptors := []int{i}, [][]drive.Entry{{{Key: p.keys[i].name, Value: "x"}}}
		if also := p.keys[i].also; also >= 0 {
			charged, descriptors = append(charged, also), append(descriptors, []drive.Entry{{Key: p.keys[also].name, Value: "x"}})
		}
		encoded, err := drive.Request(domain, descriptors...)
		if err != nil {
			return nil, err
		}
		p.charged, p.encoded = append(p.charged, charged), append(p.encoded, encoded)
	}
	return p, nil
}

func (p *plan) limits() []algorithms.Limit {
	all := make([]algorithms.Limit, len(p.keys))
	for i, k := range p.keys {
		all[i] = k.limit
	}
	return all
}

// load says which sidecar gets a request.
type load uint8

const (
	even   load = iota // each gets the same part
	skewed             // the first one gets nine of ten
	moving             // one at a time gets all, for move
)

const move = 250 * time.Millisecond

// to returns the sidecar of request n of a key.
func (l load) to(n, sidecars int, at time.Duration) int {
	switch {
	case l == moving:
		return int(at/move) % sidecars
	case l == skewed && n%10 == 9:
		return 1 + n/10%(sidecars-1)
	case l == skewed:
		return 0
	}
	return n % sidecars
}

// schedule spreads the requests of each key evenly over time, and over the sidecars by their load.
func (p *plan) schedule(sidecars int, l load) [][]due {
	all := make([][]due, sidecars)
	for i, k := range p.keys {
		if k.rate == 0 {
			continue
		}
		gap := time.Duration(float64(time.Second) / k.rate)
		for n := 0; ; n++ {
			at := time.Duration(n)*gap + gap*time.Duration(i)/time.Duration(len(p.keys))
			if at >= p.length {
				break
			}
			to := l.to(n, sidecars, at)
			all[to] = append(all[to], due{at, i})
		}
	}
	for _, of := range all {
		slices.SortStableFunc(of, func(x, y due) int { return cmp.Compare(x.at, y.at) })
	}
	return all
}

// rules returns the rule file.
func (p *plan) rules() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
	for _, k := range p.keys {
		fmt.Fprintf(&b, "  - key: %s\n    rate_limit: {algorithm: %v, period: %v, requests_per_unit: %d",
			k.name, k.limit.Algorithm, k.limit.Period, k.limit.Requests)
		if k.limit.Burst != 0 {
			fmt.Fprintf(&b, ", burst: %d", k.limit.Burst)
		}
		b.WriteString("}\n")
	}
	return b.String()
}
