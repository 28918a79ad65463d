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
}

// taken is one charge of a log.
type taken struct {
	at            algorithms.Instant
	hits          int64
	limit         algorithms.Limit
	countRejected bool
}

func (k key) equal(o key) bool {
	return k.limit == o.limit && k.state == o.state && slices.Equal(k.log, o.log)
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
			// As memstore (decision 27). The limit changes no answer, but for the number of a Reset of an idle key.
			k.limit = was
		}
		return k, d
	}
	log := k.played()
	d = log.Take(c.Limit, now, hits, c.CountRejected)
	k.limit = c.Limit
	switch {
	case log.Unused():
		return key{}, d
	case hits != 0 && (d.Allowed || c.CountRejected):
		k.log = append(slices.Clip(k.log), taken{now, hits, c.Limit, c.CountRejected})
	}
	return k, d
}

// played returns the log of the key.
func (k key) played() *algorithms.Log {
	log := new(algorithms.Log)
	for _, h := range k.log {
		log.Take(h.limit, h.at, h.hits, h.countRejected)
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

// partsModel returns the model of requests whose keys lie in several slots. Decision 14 promises less of these. Each part is atomic, but
// others may see the parts of two requests in another order. So each key has an order of its own. While a request is under way, its
// keys have less room than the keys of the model. Another call may be denied that would pass, and sees at most the rest of the model. The model
// admits each admitted call too, and a denial changes nothing. Once all calls have ended the rest of each key is exact. A refund
// waits for the verdict, and its answer shows the rest before the wait.
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

// modelOf returns a model of some keys, in which an answer must keep a condition beside the model's answer.
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
		_, d := keys[c.keys[0]].take(&c.charges[0], c.charges[0].Hits, c.now)
		return keys, answer{decisions: []algorithms.Decision{d}}
	case reset:
		next := slices.Clone(keys)
		next[c.keys[0]] = key{}
		return next, answer{forgotten: 1}
	case take: // below
	}
	next, decisions := slices.Clone(keys), make([]algorithms.Decision, len(c.charges))
	for i := range c.charges {
		x := &c.charges[i]
		next[c.keys[i]], decisions[i] = next[c.keys[i]].take(x, x.Hits, c.now)
	}
	if store.Admitted(c.charges, decisions) {
		return next, answer{admitted: true, decisions: decisions}
	}
	copy(next, keys)
	for i := range c.charges {
		x := &c.charges[i]
		hits := x.Hits
		if !x.CountRejected {
			hits = 0
		}
		var d algorithms.Decision
		next[c.keys[i]], d = next[c.keys[i]].take(x, hits, c.now)
		if !x.CountRejected {
			d.Allowed, d.RetryAfter = true, 0
		}
		if decisions[i].Allowed {
			decisions[i] = d
		}
	}
	return next, answer{decisions: decisions}
}

// explains reports whether the model's answer is the store's.
func (c call) explains(keys []key, got, want answer) bool {
	if c.method != reset {
		return got.admitted == want.admitted && slices.Equal(got.decisions, want.decisions)
	}
	switch k := keys[c.keys[0]]; {
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
