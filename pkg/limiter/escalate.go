package limiter

import (
	"bytes"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A limit with escalate has a second key beside each of its keys, which counts offenses. See
// [descriptors.Limit.AppendBlockKey] and [algorithms.Escalation]. Each request asks that key in its
// own transaction whether it is blocked: a guard. If the limit itself denies the request, the first
// time in a period, the next transaction tells the offense.

// Offenses is the past of a key under a limit with escalate.
type Offenses struct {
	Blocks  int           // so far, up to algorithms.MaxBlocks; 0 while the key is blocked
	Blocked time.Duration // the wait until the end of the block; 0: the key is not blocked
}

func offensesOf(d *algorithms.Decision) Offenses {
	if !d.Allowed {
		return Offenses{Blocked: d.RetryAfter}
	}
	return Offenses{Blocks: algorithms.OffensesOf(*d).Blocks}
}

// offenses returns the past of the key of charge i; zero for a limit without escalate.
func (v *Verdict) offenses(i int) (o Offenses) {
	if !v.escalates {
		return o
	}
	for n := i + 1; n < len(v.charges) && v.charges[n].Rule == v.charges[i].Rule; n++ {
		if v.terms[n].guards == int32(i)+1 {
			return offensesOf(&v.decisions[n])
		}
	}
	return o
}

// blocked returns the decision on charge i, which a block of its key denies.
func (v *Verdict) blocked(i int) (d algorithms.Decision, wait time.Duration) {
	d = v.decisions[i]
	if wait = v.offenses(i).Blocked; wait > 0 {
		d.Allowed, d.Remaining, d.RetryAfter = false, 0, max(d.RetryAfter, wait)
		d.ResetAfter = max(d.ResetAfter, wait)
	}
	return d, wait
}

// guard adds the guard of a charge. The ends of holders, refunds, overrides, bans, quotas and
// limits in shadow mode have none.
func (v *Verdict) guard(c *charging, of int) {
	charge := &v.charges[of]
	if charge.Hits < 0 || charge.IsEnd() || charge.Limit.PerPeriod() == 0 || c.mode != store.Enforce || v.Statuses[c.at].Quota {
		return
	}
	t, from := v.terms[of], len(v.keys)
	v.keys = t.limit.AppendBlockKey(v.keys, charge.Key)
	key := v.keys[from:]
	v.escalates = true
	v.charges = append(v.charges, store.Charge{
		Key: key, Hash: store.HashOf(key), Limit: t.limit.Blocks(), Rule: c.at, Mode: store.Enforce, Exact: true,
	})
	v.terms = append(v.terms, term{limit: t.limit, grant: t.grant, guards: int32(of) + 1})
}

// offends makes the next transaction of v tell the offenses of the first one, and reports whether
// there are any. After that transaction it takes over the blocks that have begun.
func (v *Verdict) offends(admitted bool) bool {
	c := &v.choice
	if c.telling {
		c.telling = false
		v.learnBlocks()
	}
	if c.told || admitted {
		return false
	}
	c.told = true
	c.charges, c.index = c.charges[:0], c.index[:0]
	for i := range v.charges {
		if v.terms[i].guards == 0 || !v.isOffense(i) {
			continue
		}
		offense := v.charges[i]
		blocks := algorithms.OffensesOf(v.decisions[i]).Blocks
		offense.Hits = int64(v.terms[i].limit.Escalate.Length(blocks) / time.Second)
		offense.Mode, offense.CountRejected, offense.OnError, offense.Left = store.Shadow, true, store.OnErrorAllow, nil
		c.add(i, offense)
	}
	if len(c.charges) == 0 {
		return false
	}
	c.room()
	clear(c.decisions) // of a transaction that fails
	c.telling = true
	return true
}

// isOffense reports whether the limit of guard i has denied its hits, the first time in the period.
// A denied probe is no offense, and neither is a denial without the shared store: it may be by a
// part of the limit. The same holds for the denial of a full store.
func (v *Verdict) isOffense(i int) bool {
	of := v.terms[i].guards - 1
	if c := &v.charges[of]; c.Hits == 0 && c.Hold == nil {
		return false
	}
	if v.decisions[of].Allowed || !v.decisions[i].Allowed || algorithms.OffensesOf(v.decisions[i]).Told {
		return false
	}
	source := v.parts.states[of].Source
	return source != store.Without && source != store.NoRoom
}

// learnBlocks takes over the blocks that the offenses of the request have begun.
func (v *Verdict) learnBlocks() {
	c := &v.choice
	for n, i := range c.index {
		if d := c.decisions[n]; d.RetryAfter > 0 {
			v.decisions[i] = d
			v.terms[i].began = d.RetryAfter == time.Duration(c.charges[n].Hits)*time.Second && !c.offended(n)
		}
	}
}

// offended reports whether a charge before charge n tells an offense of the same key.
func (c *choice) offended(n int) bool {
	of := &c.charges[n]
	return slices.ContainsFunc(c.charges[:n], func(b store.Charge) bool { return b.Hash == of.Hash && bytes.Equal(b.Key, of.Key) })
}

// noteBlocks counts the blocks that the request has begun, and gives notices.
func (l *Limiter) noteBlocks(r *Request, v *Verdict) {
	for i := range v.charges {
		t := &v.terms[i]
		if !t.began {
			continue
		}
		s := &v.Statuses[v.charges[i].Rule]
		v.set.countsOf(r, s).further().blocks.Add(1)
		if l.options.OnNotice == nil {
			continue
		}
		n := Notice{Domain: r.Domain, Rule: s.Rule, Key: string(v.charges[t.guards-1].Key), Limit: *t.limit, Block: v.decisions[i].RetryAfter}
		if l.options.Now != nil {
			n.Until = l.options.Now().Add(n.Block)
		}
		l.options.OnNotice(&n)
	}
}
