package linear

import (
	"slices"

	"github.com/anishathalye/porcupine"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// key is the state of one key. A key is never changed, only replaced.
type key struct {
	limit algorithms.Limit // of the last charge
	state algorithms.State
	log   []taken // of sliding_window_log: the charges, to be played again

	holders []holder // by name
}

// taken is one charge of a log.
type taken struct {
	at            algorithms.Instant
	hits          int64
	limit         algorithms.Limit
	countRejected bool

	back    bool               // the hits came back,
	charged algorithms.Instant // which were taken at this instant
}

func (k key) equal(o key) bool {
	return k.limit == o.limit && k.state == o.state && slices.Equal(k.log, o.log) && slices.Equal(k.holders, o.holders)
}

// take returns the key after a charge, and the decision.
func (k key) take(c *store.Charge, hits int64, now algorithms.Instant) (key, algorithms.Decision) {
	var d algorithms.Decision
	if c.Limit.Algorithm.HasState() {
		was := k.limit
		k.state, k.limit, d = algorithms.TakeAs(k.limit, c.Limit, k.state, now, hits, c.CountRejected)
		switch {
		case k.state.Unused():
			k.limit = algorithms.Limit{}
		case c.Limit.Requests == 0 && was.Requests > 0:
			// As memstore (decision 27). The limit changes no answer, but for the number of a Reset of an
			// idle key.
			k.limit = was
		}
		return k, d
	}
	log := k.played()
	d = log.Take(c.Limit, now, hits, c.CountRejected)
	k.limit = c.Limit
	switch {
	case log.Unused():
		return key{holders: k.holders}, d
	case hits != 0 && (d.Allowed || c.CountRejected):
		k.log = append(slices.Clip(k.log), taken{at: now, hits: hits, limit: c.Limit, countRejected: c.CountRejected})
	}
	return k, d
}

// played returns the log of the key.
func (k key) played() *algorithms.Log {
	log := new(algorithms.Log)
	for _, h := range k.log {
		if h.back {
			log.GiveBack(h.limit, h.at, h.charged, uint32(h.hits))
		} else {
			log.Take(h.limit, h.at, h.hits, h.countRejected)
		}
	}
	return log
}

// idle reports whether the key is full again, so that a store may have forgotten it.
func (k key) idle(now algorithms.Instant) bool {
	if k.log == nil {
		return algorithms.IdleAt(k.limit, k.state) <= now
	}
	return k.played().IdleAt(k.limit) <= now
}

// model returns the plain model of a plan: each answer and each state is exact.
func (p Plan) model() porcupine.Model {
	if p.Parts {
		return partsModel()
	}
	return modelOf(p.Keys, call.explains)
}

// partsModel returns the model of requests whose keys lie in several slots. Decision 14 promises
// less of these. Each part is atomic, but others may see the parts of two requests in another
// order. So each key has an order of its own. While a request is under way, its keys have less room
// than the keys of the model. Another call may be denied that would pass, and sees at most the rest
// of the model. The model admits each admitted call too, and a denial changes nothing. Once all
// calls have ended the rest of each key is exact. A refund waits for the verdict, and its answer
// shows the rest before the wait.
func partsModel() porcupine.Model {
	m := modelOf(1, call.promised)
	m.Partition = func(history []porcupine.Operation) [][]porcupine.Operation {
		var of [][]porcupine.Operation
		for _, o := range history {
			c, _ := o.Input.(call)
			got, _ := o.Output.(answer)
			if c.method == take && !got.admitted {
				continue
			}
			for i, k := range c.keys {
				if slices.Index(c.keys, k) < i {
					continue
				}
				for len(of) <= k {
					of = append(of, nil)
				}
				o.Input, o.Output = part(c, got, k)
				of[k] = append(of[k], o)
			}
		}
		return of
	}
	return m
}

// part returns the part of a call about one key, and of its answer.
func part(c call, got answer, k int) (call, answer) {
	own, its := c, got
	own.keys, own.charges, its.decisions = nil, nil, nil
	sum := int64(0)
	for i := range c.keys {
		if c.keys[i] == k {
			sum += c.charges[i].Hits
			own.keys, own.charges = append(own.keys, 0), append(own.charges, c.charges[i])
			its.decisions = append(its.decisions, got.decisions[i])
		}
	}
	own.waits = sum < 0 && len(own.keys) < len(c.keys)
	return own, its
}

// modelOf returns a model of some keys, in which an answer must keep a condition beside the model's
// answer.
func modelOf(n int, holds func(c call, keys []key, got, want answer) bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return make([]key, n) },
		Step: func(state, input, output any) (bool, any) {
			keys, _ := state.([]key)
			c, _ := input.(call)
			got, _ := output.(answer)
			next, want := step(keys, c)
			return holds(c, keys, got, want), next
		},
		Equal: func(a, b any) bool {
			x, _ := a.([]key)
			y, _ := b.([]key)
			return slices.EqualFunc(x, y, key.equal)
		},
	}
}

// step returns the keys after a call, and the answer.
func step(keys []key, c call) ([]key, answer) {
	switch c.method {
	case peek:
		_, alone := step(keys, call{now: c.now, keys: c.keys[:1], charges: c.charges[:1]})
		return keys, answer{decisions: alone.decisions, found: alone.found}
	case reset:
		next := slices.Clone(keys)
		next[c.keys[0]] = key{}
		return next, answer{forgotten: 1}
	case take: // below
	}
	next, out := slices.Clone(keys), answer{decisions: make([]algorithms.Decision, len(c.charges))}
	if store.Holds(c.charges) {
		out.found = make([]algorithms.Hold, len(c.charges))
	}
	find := func(i int) {
		if out.found != nil {
			out.found[i] = next[c.keys[i]].hold(&c.charges[i], c.now)
		}
	}
	for i := range c.charges {
		if k := c.keys[i]; settles(&c.charges[i]) {
			find(i)
			next[k], out.decisions[i] = next[k].settle(&c.charges[i], c.now)
		}
	}
	settled, effects := slices.Clone(next), make([]algorithms.Effect, len(c.charges))
	for i := range c.charges {
		if k, x := c.keys[i], &c.charges[i]; !settles(x) {
			find(i)
			effects[i] = next[k].effect(x, c.now)
			next[k], out.decisions[i] = next[k].apply(x, effects[i], c.now)
			next[k] = next[k].note(x, c.now, out.decisions[i].Allowed)
		}
	}
	if out.admitted = store.Admitted(c.charges, out.decisions); !out.admitted {
		copy(next, settled)
		c.deny(next, effects, out.decisions)
	}
	for k := range next {
		next[k].holders = settled[k].holders
	}
	for i := range c.charges {
		if k, x := c.keys[i], &c.charges[i]; !settles(x) {
			next[k] = next[k].note(x, c.now, out.admitted && out.decisions[i].Allowed)
		}
	}
	return next, out
}

// deny applies the charges of a denied request that count rejected hits, and decides the charges
// that were allowed.
func (c call) deny(keys []key, effects []algorithms.Effect, decisions []algorithms.Decision) {
	for i := range c.charges {
		x, k := &c.charges[i], c.keys[i]
		if settles(x) {
			continue
		}
		e := effects[i]
		if !x.CountRejected || x.Limit.Algorithm == algorithms.Concurrency {
			e = algorithms.Effect{Forced: true}
		}
		var d algorithms.Decision
		if keys[k], d = keys[k].apply(x, e, c.now); decisions[i].Allowed {
			decisions[i] = d
		}
	}
}

// explains reports whether the model's answer is the store's.
func (c call) explains(keys []key, got, want answer) bool {
	if c.method != reset {
		return got.admitted == want.admitted && slices.Equal(got.decisions, want.decisions) && slices.Equal(got.found, want.found)
	}
	switch k := keys[c.keys[0]]; {
	case len(k.holders) > 0 || c.charges[0].Limit.Algorithm == algorithms.Concurrency:
		return true // a store may count a key of holders only, or not
	case k.state.Unused() && k.log == nil:
		want.forgotten = 0
	case k.idle(c.now):
		return true // the store may have forgotten the key
	}
	return got.forgotten == want.forgotten
}

// promised reports whether the answer to a part keeps the promise of partsModel.
func (c call) promised(keys []key, got, want answer) bool {
	if c.alone {
		return c.explains(keys, got, want)
	}
	if got.admitted && !want.admitted {
		return false
	}
	for i, d := range got.decisions {
		if d.Allowed && (!want.decisions[i].Allowed || d.Remaining > want.decisions[i].Remaining && !c.waits) {
			return false
		}
	}
	return true
}
