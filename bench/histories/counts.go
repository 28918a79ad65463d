package main

import (
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weirproxy/weir/bench/drive"
)

const (
	// lease is the longest time of a lease. A failover may lose the lease, and its hits come later.
	lease = time.Second
	// search is how long Porcupine may look for an order of one key.
	search = 5 * time.Second
)

// lossy reports whether a failover may have lost the hits of a request. The request was sent before
// the death of the primary, and answered after the instant up to which the next primary has all
// hits. Hits of a lost lease come later.
func (s *scene) lossy(o *op) bool {
	after := time.Duration(0)
	if o.class().leased() {
		after = lease
	}
	return slices.ContainsFunc(s.Faults, func(f fault) bool {
		return f.Kept > 0 && o.received >= f.Kept && o.sent <= f.Back+int64(after)
	})
}

// count is the hits that a key may have, at least and at most. In doubt are hits that a failover
// may lose later, or has lost: they are not among the least.
type count struct{ least, most, doubt int }

// answer is the output of a request for Porcupine.
type answer struct {
	hits           int
	allowed, maybe bool // maybe: a denial without a reason, or no answer: it may have been charged
	lossy          bool
}

// count judges a key with a count: never more hits than the limit, and no denial before enough of
// it is used. With leases half of the limit is enough, as the rest may lie in leases of other
// sidecars. Without leases there is an order of the requests in which each answer is right.
func (j *judge) count(c class, ops []op, v *verdict, broken func(string, ...any)) {
	limit := int(j.Limits[c])
	answers := make([]answer, len(ops))
	admitted, lost := 0, 0
	charged := make([]int, len(ops)+1) // hits that the first requests may have charged
	for i := range ops {
		o := &ops[i]
		a := answer{hits: int(o.hits), allowed: o.result == drive.Allowed, maybe: o.result == drive.Failed, lossy: j.lossy(o)}
		if o.result == drive.Denied && j.withoutRedis(o, denies) {
			a.maybe = true
			v.blurred++
		}
		if charged[i+1] = charged[i]; a.maybe || a.allowed {
			charged[i+1] += a.hits
		}
		if a.allowed {
			admitted += a.hits
		}
		if a.allowed && a.lossy {
			lost += a.hits
		}
		if !a.maybe && !a.lossy {
			v.exact++
		}
		answers[i] = a
	}
	v.over = max(0, admitted-limit)
	if admitted > limit+lost {
		broken("admitted %d hits of %d; a fault explains %d", admitted, limit, lost)
		return
	}
	enough := limit
	if c.leased() {
		enough /= 2
	}
	for i := range ops {
		if a := &answers[i]; !a.allowed && !a.maybe {
			if before := charged[sentUntil(ops, ops[i].received)]; before+a.hits <= enough {
				broken("denied %d hits after at most %d hits of %d", a.hits, before, limit)
				return
			}
		}
	}
	if !c.leased() {
		j.order(ops, answers, v, broken)
	}
}

// order looks for an order of the requests in which each answer is right.
func (j *judge) order(ops []op, answers []answer, v *verdict, broken func(string, ...any)) {
	limit := int(j.Limits[countExact])
	history := make([]porcupine.Operation, len(ops))
	for i := range ops {
		o := &ops[i]
		history[i] = porcupine.Operation{ClientId: int(o.sidecar), Call: o.sent, Return: o.received, Output: answers[i]}
	}
	model := porcupine.Model{
		Init: func() any { return count{} },
		Step: func(state, _, output any) (bool, any) {
			n, _ := state.(count)
			a, _ := output.(answer)
			return n.step(a, limit)
		},
	}
	switch porcupine.CheckOperationsTimeout(model, history, search) {
	case porcupine.Ok:
		v.keys++
	case porcupine.Illegal:
		broken("%d requests have no order in which each answer is right", len(ops))
	case porcupine.Unknown:
		v.undecided++
	}
}

// step returns the hits after an answer, and whether the answer can be right.
func (n count) step(a answer, limit int) (bool, count) {
	sure, doubt := a.hits, n.doubt
	if a.lossy {
		sure, doubt = 0, doubt+a.hits
	}
	switch {
	case a.allowed:
		return n.least+a.hits <= limit, count{n.least + sure, min(n.most+a.hits, limit), doubt}
	case a.maybe:
		return true, count{n.least, max(n.most, min(n.most+a.hits, limit)), doubt}
	default:
		reason := limit - a.hits + 1
		return n.most >= reason, count{max(n.least, reason-n.doubt), n.most, n.doubt}
	}
}
